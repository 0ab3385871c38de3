// Command nats is the published server, built from its module at the version that go.mod pins.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/nats-io/nats-server/v2/server"
)

func main() {
	flags := flag.NewFlagSet("nats-server", flag.ExitOnError)
	options, err := server.ConfigureOptions(flags, os.Args[1:], server.PrintServerAndExit, flags.Usage, server.PrintTLSHelpAndDie)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	node, err := server.NewServer(options)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	node.ConfigureLogger()
	if err := server.Run(node); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	node.WaitForShutdown()
}
