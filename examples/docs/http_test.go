package docs_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/measuredgo/resilience"
	"github.com/measuredgo/resilience/resiliencehttp"
	"github.com/measuredgo/resilience/resiliencetest"
)

// fetched is the status and the body of the answer to a GET, or the error.
func fetched(t http.RoundTripper) string {
	req, err := http.NewRequest(http.MethodGet, "http://files.example/report", nil)
	if err != nil {
		return err.Error()
	}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Sprintf("%d %q, then: %v", resp.StatusCode, body, err)
	}
	return fmt.Sprintf("%d %q", resp.StatusCode, body)
}

var errReset = errors.New("connection reset")

func Example_httpBuffered() {
	var server resiliencetest.RoundTripper
	server.Respond(200, "first h").Break(io.ErrUnexpectedEOF).Respond(200, "first half, second half")
	policy, err := resiliencehttp.NewPolicy(resilience.WithBackoff(resilience.NoBackoff()))
	if err != nil {
		fmt.Println(err)
		return
	}
	// region buffered
	transport, err := resiliencehttp.NewTransport(&server, policy, resiliencehttp.WithBufferedResponses())
	// endregion
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(fetched(transport), "after", len(server.Requests()), "requests")

	// Output: 200 "first half, second half" after 2 requests
}

func Example_httpResumed() {
	var server resiliencetest.RoundTripper
	server.Respond(200, "first half, ").Header("ETag", `"v1"`).Break(errReset).
		Respond(206, "second half").Header("Content-Range", "bytes 12-22/23")
	policy, err := resiliencehttp.NewPolicy(resilience.WithDeadline(time.Minute))
	if err != nil {
		fmt.Println(err)
		return
	}
	// region resumed
	transport, err := resiliencehttp.NewTransport(&server, policy, resiliencehttp.WithResumedDownloads())
	// endregion
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(fetched(transport))
	fmt.Println(server.Requests()[1].Header.Get("Range"), server.Requests()[1].Header.Get("If-Range"))

	// Output:
	// 200 "first half, second half"
	// bytes=12- "v1"
}

func Example_httpQuota() {
	var server resiliencetest.RoundTripper
	server.Respond(200, "one of the last").Header("RateLimit-Policy", `"hour";q=1000`).Header("RateLimit", `"hour";r=40;t=900`)
	policy, err := resiliencehttp.NewPolicy(resilience.WithDeadline(time.Second))
	if err != nil {
		fmt.Println(err)
		return
	}
	// region quota
	transport, err := resiliencehttp.NewTransport(&server, policy, resiliencehttp.WithQuota(0.05)) // leave 5 % to others
	// endregion
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(fetched(transport))
	req, err := http.NewRequest(http.MethodGet, "http://files.example/report", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = transport.RoundTrip(req)
	var failed *resilience.Error
	if errors.As(err, &failed) {
		fmt.Println(errors.Is(err, resilience.ErrLimited), "come back in", failed.RetryAfter.Round(time.Minute))
	}
	fmt.Println(len(server.Requests()), "request was sent")

	// Output:
	// 200 "one of the last"
	// true come back in 15m0s
	// 1 request was sent
}

func Example_httpHosts() {
	var server resiliencetest.RoundTripper
	policy, err := resiliencehttp.NewPolicy(resilience.WithBreaker(resilience.BreakerConfig{}))
	if err != nil {
		fmt.Println(err)
		return
	}
	transport, err := resiliencehttp.NewTransport(&server, policy)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, url := range []string{"http://a.example/1", "http://A.example:80/2", "https://a.example/", "http://b.example/"} {
		if req, err := http.NewRequest(http.MethodGet, url, nil); err == nil {
			if resp, err := transport.RoundTrip(req); err == nil {
				_ = resp.Body.Close()
			}
		}
	}
	// region hosts
	var lines []string
	for host, p := range transport.Hosts() {
		lines = append(lines, fmt.Sprintln(host, p.Name(), p.Breaker().State()))
	}
	// endregion
	slices.Sort(lines)
	fmt.Print(lines)

	// Output:
	// [http://a.example http:a.example closed
	//  http://b.example http:b.example closed
	//  https://a.example http:a.example closed
	// ]
}

// What docs/http.md and docs/troubleshooting.md say about a body after its headers.
func TestHTTPBodyBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var server resiliencetest.RoundTripper
		server.Respond(200, "half").Stall()
		policy, err := resiliencehttp.NewPolicy(resilience.WithAttemptTimeout(time.Second), resilience.WithDeadline(10*time.Second))
		require.NoError(t, err)
		transport, err := resiliencehttp.NewTransport(&server, policy)
		require.NoError(t, err)
		begin := time.Now()
		require.Contains(t, fetched(transport), "resilience: stalled")
		require.Equal(t, time.Second, time.Since(begin))
		require.Len(t, server.Requests(), 1, "not repeated: the caller has half of it")

		policy, err = policy.With(resilience.WithProgressBound(false))
		require.NoError(t, err)
		transport, err = resiliencehttp.NewTransport(&server, policy)
		require.NoError(t, err)
		begin = time.Now()
		require.Contains(t, fetched(transport), "deadline exceeded")
		require.Equal(t, 10*time.Second, time.Since(begin))
	})
}

// A policy without the rules takes a 503 for a success.
func TestHTTPWithoutRules(t *testing.T) {
	var server resiliencetest.RoundTripper
	server.Respond(503, "busy")
	transport, err := resiliencehttp.NewTransport(&server, resilience.MustNew())
	require.NoError(t, err)
	require.Equal(t, `503 "busy"`, fetched(transport))
	require.Len(t, server.Requests(), 1)
}

// A Timeout of the http.Client that is shorter than the deadline ends the call as an inherited deadline does.
func TestHTTPClientTimeoutIsADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var server resiliencetest.RoundTripper
		server.Respond(503, "busy")
		policy, err := resiliencehttp.NewPolicy(resilience.WithBackoff(resilience.ConstantBackoff(10 * time.Second)))
		require.NoError(t, err)
		transport, err := resiliencehttp.NewTransport(&server, policy)
		require.NoError(t, err)
		client := &http.Client{Transport: transport, Timeout: 5 * time.Second}
		begin := time.Now()
		resp, err := client.Get("http://files.example/")
		require.NoError(t, err)
		defer resp.Body.Close()
		require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
		require.Zero(t, time.Since(begin), "a wait that does not fit is not begun")
	})
}
