// Command hosts sends requests to many hosts through one client, and prints a dashboard of what the client has learned
// about each of them.
package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/measuredgo/resilience"
	"github.com/measuredgo/resilience/resiliencehttp"
)

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	policy, err := resiliencehttp.NewPolicy(
		resilience.WithAttempts(2),
		resilience.WithBackoff(resilience.ConstantBackoff(time.Millisecond)),
		resilience.WithBreaker(resilience.BreakerConfig{}),
		resilience.WithLimiter(resilience.AdaptiveLimit(50)),
	)
	if err != nil {
		return err
	}
	transport, err := resiliencehttp.NewTransport(nil, policy)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: transport}
	defer client.CloseIdleConnections()

	for _, handle := range []http.HandlerFunc{
		func(http.ResponseWriter, *http.Request) {},
		func(http.ResponseWriter, *http.Request) { time.Sleep(20 * time.Millisecond) },
		func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "broken", http.StatusInternalServerError) },
	} {
		server := httptest.NewServer(handle)
		defer server.Close()
		for range 25 {
			resp, err := client.Get(server.URL)
			if err != nil {
				break // the breaker is open
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
	}
	return dashboard(os.Stdout, transport)
}

// dashboard writes a line for each host, in the order of their names.
func dashboard(w io.Writer, t *resiliencehttp.Transport) error {
	var lines []string
	for host, p := range t.Hosts() {
		b := p.Breaker().Stats()
		lines = append(lines, fmt.Sprintf("%s\t%v\t%d\t%d\t%s\t%d",
			host, b.State, b.Calls, b.Failures, reading(p.Measured().AttemptCeiling), p.Limiter().Stats().Limit))
	}
	slices.Sort(lines)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "HOST\tBREAKER\tCALLS\tFAILED\tCEILING\tLIMIT")
	_, _ = fmt.Fprintln(table, strings.Join(lines, "\n"))
	return table.Flush()
}

func reading(r resilience.Reading) string {
	if d, warm := r.Get(); warm {
		return d.Round(time.Millisecond).String()
	}
	return "-"
}
