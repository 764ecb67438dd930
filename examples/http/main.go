// Command http runs two services and a client in one process. The client gives its call 500 ms; each hop keeps a little
// back for itself and passes the rest on, and when the last one is too slow, all of them stop together.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
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
	inbound := resiliencehttp.Inbound(
		resiliencehttp.WithInboundReserve(20*time.Millisecond),
		resiliencehttp.WithRejectExpired(),
	)

	stock := httptest.NewServer(inbound(http.HandlerFunc(serveStock)))
	defer stock.Close()

	policy, err := resiliencehttp.NewPolicy(resilience.WithBreaker(resilience.BreakerConfig{}))
	if err != nil {
		return err
	}
	client, err := resiliencehttp.NewClient(policy, resiliencehttp.WithDeadlineHeader(""))
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	shop := httptest.NewServer(inbound(shop{client: client, stock: stock.URL}))
	defer shop.Close()

	hurried, err := resiliencehttp.NewPolicy(resilience.WithName("browser"), resilience.WithDeadline(500*time.Millisecond))
	if err != nil {
		return err
	}
	browser, err := resiliencehttp.NewClient(hurried, resiliencehttp.WithDeadlineHeader(""))
	if err != nil {
		return err
	}
	defer browser.CloseIdleConnections()
	for _, path := range []string{"/fast", "/slow"} {
		fmt.Printf("GET %s\n", path)
		start := time.Now()
		if err := show(browser.Get(shop.URL + path)); err != nil {
			return err
		}
		fmt.Printf("  client: done after %v\n", time.Since(start).Round(10*time.Millisecond))
	}
	return nil
}

// show prints what came of a call. A deadline that was reached is a result here, not a failure of the example.
func show(resp *http.Response, err error) error {
	if errors.Is(err, resilience.ErrDeadlineExceeded) {
		fmt.Println("  client: deadline exceeded")
		return nil
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	fmt.Printf("  client: %s %s\n", resp.Status, body)
	return err
}

// shop asks the stock for everything that it serves.
type shop struct {
	client *http.Client
	stock  string
}

func (s shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	tellTimeLeft("shop", r)
	req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, s.stock+r.URL.Path, nil)
	if err != nil {
		http.Error(w, "bad request", http.StatusBadRequest)
		return
	}
	resp, err := s.client.Do(req)
	if err != nil {
		fmt.Println("  shop: gives up")
		if !resiliencehttp.WriteProblem(w, r, err) {
			http.Error(w, "the stock does not answer", http.StatusBadGateway)
		}
		return
	}
	defer resp.Body.Close()
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, resp.Body)
}

func serveStock(w http.ResponseWriter, r *http.Request) {
	tellTimeLeft("stock", r)
	takes := 10 * time.Millisecond
	if r.URL.Path == "/slow" {
		takes = time.Minute
	}
	select {
	case <-time.After(takes):
		_, _ = io.WriteString(w, "42 pieces")
	case <-r.Context().Done():
		fmt.Println("  stock: stops working")
		resiliencehttp.WriteProblem(w, r, context.Cause(r.Context()))
	}
}

func tellTimeLeft(who string, r *http.Request) {
	if at, ok := r.Context().Deadline(); ok {
		fmt.Printf("  %s: %v left\n", who, time.Until(at).Round(10*time.Millisecond))
	}
}
