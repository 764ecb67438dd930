package resiliencehttp_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/measuredgo/resilience"
	"github.com/measuredgo/resilience/resiliencehttp"
)

func Example() {
	n := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if n++; n == 1 {
			http.Error(w, "not yet", http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "hello")
	}))
	defer server.Close()

	policy, err := resiliencehttp.NewPolicy(resilience.WithBackoff(resilience.NoBackoff()))
	if err != nil {
		panic(err)
	}
	client, err := resiliencehttp.NewClient(policy)
	if err != nil {
		panic(err)
	}
	defer client.CloseIdleConnections()
	resp, err := client.Get(server.URL)
	if err != nil {
		panic(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, _ := io.ReadAll(resp.Body)
	fmt.Println(resp.Status, string(body), "after", n, "attempts")
	// Output: 200 OK hello after 2 attempts
}

func ExampleRepeatable() {
	req, _ := http.NewRequest(http.MethodPost, "http://shop.example/orders", strings.NewReader("one book"))
	req = resiliencehttp.Repeatable(req, "order-17")
	fmt.Println(req.Header.Get("Idempotency-Key"))
	// Output: order-17
}

func ExampleInbound() {
	handler := resiliencehttp.Inbound(resiliencehttp.WithRejectExpired())(
		http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, bounded := r.Context().Deadline()
			fmt.Println(bounded)
		}))
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("X-Deadline-Ms", "200")
	handler.ServeHTTP(httptest.NewRecorder(), r)
	// Output: true
}

func ExampleWriteProblem() {
	w := httptest.NewRecorder()
	resiliencehttp.WriteProblem(w, nil, &resilience.Error{Reason: resilience.ReasonAttemptsExhausted, Total: 3})
	fmt.Println(w.Code, w.Body)
	// Output: 502 {"type":"about:blank","title":"Bad Gateway","status":502,"detail":"A dependency failed."}
}
