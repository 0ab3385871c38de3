package main

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
)

// The peer frame of raftlog (docs/formats.md): length u32, CRC32C of all that follows u32, length of the header u16,
// version u8, kind u8, then as many bytes as the length says.
const (
	frameSize    = 12
	frameMax     = 32 << 20
	frameVersion = 1
	frameKindMax = 6
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// What a toxic takes as one piece.
const (
	chunks   = 0 // what came in one read
	frames   = 1 // a whole frame between peers
	requests = 2 // a chunk that begins with the request line of HTTP
)

var methods = [][]byte{[]byte("GET /"), []byte("PUT /"), []byte("POST /"), []byte("DELETE /")}

// A unit is one piece of the stream; only one that is whole may be touched.
type unit struct {
	data  []byte
	whole bool
}

// A cutter makes units of the chunks of one connection.
type cutter struct {
	rest   []byte // of a frame that is not whole yet
	synced bool   // the stream is known to be at the beginning of a frame
}

func (c *cutter) cut(data []byte, kind int) []unit {
	switch kind {
	case requests:
		for _, method := range methods {
			if bytes.HasPrefix(data, method) {
				return []unit{{data, true}}
			}
		}
		return []unit{{data, false}}
	case frames:
		return c.frames(data)
	}
	return []unit{{data, true}}
}

// frames cuts at frames. A toxic may come to a connection in the middle of one, so the first chunk that begins with a
// frame whose CRC is right is where it begins; until then everything passes.
func (c *cutter) frames(data []byte) []unit {
	if !c.synced {
		size, plausible := frameAt(data)
		if !plausible || len(data) < size ||
			crc32.Checksum(data[8:size], castagnoli) != binary.LittleEndian.Uint32(data[4:]) {
			return []unit{{data, false}}
		}
		c.synced = true
	}
	c.rest = append(c.rest, data...)
	var found []unit
	for len(c.rest) >= frameSize {
		size, plausible := frameAt(c.rest)
		if !plausible { // no stream of frames after all
			c.synced = false
			return append(found, unit{c.flush(), false})
		}
		if len(c.rest) < size {
			break
		}
		found = append(found, unit{c.rest[:size:size], true})
		c.rest = c.rest[size:]
	}
	return found
}

// flush gives back what was kept of an unfinished frame.
func (c *cutter) flush() []byte {
	rest := c.rest
	c.rest = nil
	return rest
}

func frameAt(data []byte) (size int, plausible bool) {
	if len(data) < frameSize {
		return 0, false
	}
	length := int(binary.LittleEndian.Uint32(data))
	header := int(binary.LittleEndian.Uint16(data[8:]))
	kind := data[11]
	plausible = length <= frameMax && header <= length && data[10] == frameVersion && kind >= 1 && kind <= frameKindMax
	return frameSize + length, plausible
}
