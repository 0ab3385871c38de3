// A Toxiproxy server, of the same version as the stock one, with three toxics more: duplicate, reorder and corrupt.
//
// Everything but the toxics is Toxiproxy's own library, so it is driven like the stock server. `-toxics` prints what
// it was built from, by which the harness notices that the sources are newer.
package main

import (
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/Shopify/toxiproxy/v2/toxics"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// source is a digest of these files, set when it is built (.ci/toxiproxy).
var source = "unknown"

func main() {
	host := flag.String("host", "localhost", "where the API listens")
	port := flag.String("port", "8474", "the port of the API")
	config := flag.String("config", "", "a JSON file with proxies to create")
	flag.Int64("seed", 0, "without effect, as in the stock server: each of these toxics has its own seed")
	showVersion := flag.Bool("version", false, "print the version of Toxiproxy")
	showSource := flag.Bool("toxics", false, "print the digest of the sources of these toxics")
	flag.Parse()
	if *showVersion {
		fmt.Printf("toxiproxy-server version %s\n", toxiproxy.Version)
		return
	}
	if *showSource {
		fmt.Println(source)
		return
	}

	toxics.Register("duplicate", new(Duplicate))
	toxics.Register("reorder", new(Reorder))
	toxics.Register("corrupt", new(Corrupt))

	logger := zerolog.New(os.Stdout).With().Timestamp().Logger()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(prometheus.NewRegistry()), logger)
	if *config != "" {
		server.PopulateConfig(*config)
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Listen(net.JoinHostPort(*host, *port)) }()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	select {
	case <-signals:
		_ = server.Shutdown()
	case err := <-failed:
		logger.Err(err).Msg("the API ended")
		os.Exit(1)
	}
}
