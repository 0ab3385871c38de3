package main

import (
	"math/rand"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/Shopify/toxiproxy/v2/stream"
	"github.com/Shopify/toxiproxy/v2/toxics"
)

const (
	permille   = 1000
	flushLimit = 5 * time.Second // as long as Toxiproxy itself waits for who reads
)

// A count is shared by the connections of a toxic and read through the API: it stands among the attributes.
type count struct{ value atomic.Int64 }

func (c *count) MarshalJSON() ([]byte, error) { return strconv.AppendInt(nil, c.value.Load(), 10), nil }

// UnmarshalJSON ignores what a client sends: a count only counts.
func (c *count) UnmarshalJSON([]byte) error { return nil }

// Common attributes are those that all three have.
type Common struct {
	Units    int   `json:"units"`    // 0: chunks, 1: frames between peers, 2: requests of HTTP
	Permille int   `json:"permille"` // of the units that are met
	After    int64 `json:"after"`    // so many bytes of each connection pass untouched
	Seed     int64 `json:"seed"`     // of the draws; connections draw in the order in which they are opened
	Seen     count `json:"seen"`     // units that could have been met
	Done     count `json:"done"`     // units that were

	opened atomic.Int64
}

// A state is that of one connection.
type state struct {
	cutter cutter
	chance *rand.Rand
	passed int64
	late   []late
}

// A late unit goes out behind others, or when its time has come.
type late struct {
	data   []byte
	behind int // units still to pass
	until  time.Time
}

func (c *Common) NewState() interface{} {
	return &state{chance: rand.New(rand.NewSource(c.Seed*7919 + c.opened.Add(1)))}
}

// Cleanup runs when the toxic is taken away: what it kept goes out in the order it has.
func (c *Common) Cleanup(stub *toxics.ToxicStub) {
	kept := stub.State.(*state)
	if data := kept.everything(); len(data) > 0 {
		_ = stub.WriteOutput(&stream.StreamChunk{Data: data, Timestamp: time.Now()}, flushLimit)
	}
}

func (s *state) everything() []byte {
	var data []byte
	for _, each := range s.late {
		data = append(data, each.data...)
	}
	s.late = nil
	return append(data, s.cutter.flush()...)
}

// isMet draws whether this unit is met. The first one of all always is, so that one soon sees whether anything passes.
func (c *Common) isMet(s *state, each unit) bool {
	before := s.passed
	s.passed += int64(len(each.data))
	if !each.whole || before < c.After {
		return false
	}
	c.Seen.value.Add(1)
	return s.chance.Intn(permille) < c.Permille || c.Done.value.Load() == 0
}

// pass sends data out behind what it has to be behind, with what was waiting for it.
func (s *state) pass(out, data []byte) []byte {
	out = append(out, data...)
	var waiting []late
	for _, each := range s.late {
		if each.behind--; each.behind <= 0 {
			out = append(out, each.data...)
		} else {
			waiting = append(waiting, each)
		}
	}
	s.late = waiting
	return out
}

// overdue sends what waited long enough for units that did not come.
func (s *state) overdue(now time.Time) (out []byte) {
	var waiting []late
	for _, each := range s.late {
		if now.Before(each.until) {
			waiting = append(waiting, each)
		} else {
			out = append(out, each.data...)
		}
	}
	s.late = waiting
	return out
}

// run moves chunks through `treat` until the toxic is interrupted or the connection ends.
func (c *Common) run(stub *toxics.ToxicStub, treat func(*state, []byte, unit) []byte) {
	s := stub.State.(*state)
	for {
		var timer <-chan time.Time
		if len(s.late) > 0 {
			timer = time.After(time.Until(s.late[0].until))
		}
		var out []byte
		select {
		case <-stub.Interrupt:
			return
		case now := <-timer:
			out = s.overdue(now)
		case chunk := <-stub.Input:
			if chunk == nil {
				if out = s.everything(); len(out) > 0 {
					stub.Output <- &stream.StreamChunk{Data: out, Timestamp: time.Now()}
				}
				stub.Close()
				return
			}
			for _, each := range s.cutter.cut(chunk.Data, c.Units) {
				out = treat(s, out, each)
			}
		}
		if len(out) > 0 {
			stub.Output <- &stream.StreamChunk{Data: out, Timestamp: time.Now()}
		}
	}
}

// Distant are the attributes of what goes out later.
type Distant struct {
	Distance int `json:"distance"` // behind up to so many further units
	WaitMs   int `json:"wait_ms"`  // or after that time, when so many do not come
}

func (d *Distant) later(s *state, data []byte, least int) late {
	behind := least
	if d.Distance > least {
		behind += s.chance.Intn(d.Distance - least + 1)
	}
	return late{data: data, behind: behind, until: time.Now().Add(time.Duration(d.WaitMs) * time.Millisecond)}
}

// Duplicate sends units twice: at once, or again behind up to `distance` further ones.
type Duplicate struct {
	Common
	Distant
}

func (t *Duplicate) Pipe(stub *toxics.ToxicStub) {
	t.run(stub, func(s *state, out []byte, each unit) []byte {
		isMet := t.isMet(s, each)
		out = s.pass(out, each.data)
		if isMet {
			t.Done.value.Add(1)
			if again := t.later(s, each.data, 0); again.behind == 0 {
				out = append(out, again.data...)
			} else {
				s.late = append(s.late, again)
			}
		}
		return out
	})
}

// Reorder keeps units back until others went before them.
type Reorder struct {
	Common
	Distant
	Overtaken count `json:"overtaken"` // units that went before one that was kept back
}

func (t *Reorder) Pipe(stub *toxics.ToxicStub) {
	t.run(stub, func(s *state, out []byte, each unit) []byte {
		if t.isMet(s, each) {
			t.Done.value.Add(1)
			s.late = append(s.late, t.later(s, each.data, 1))
			return out
		}
		if len(s.late) > 0 {
			t.Overtaken.value.Add(1)
		}
		return s.pass(out, each.data)
	})
}

// Corrupt turns one bit of a unit: anywhere in it, or in the first byte of a request.
type Corrupt struct {
	Common
}

func (t *Corrupt) Pipe(stub *toxics.ToxicStub) {
	t.run(stub, func(s *state, out []byte, each unit) []byte {
		if t.isMet(s, each) {
			t.Done.value.Add(1)
			if t.Units == requests {
				each.data[0] ^= 0x80
			} else {
				each.data[s.chance.Intn(len(each.data))] ^= 1 << s.chance.Intn(8)
			}
		}
		return append(out, each.data...)
	})
}
