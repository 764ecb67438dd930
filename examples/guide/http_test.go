package guide

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/measuredgo/resilience"
	"github.com/measuredgo/resilience/resiliencehttp"
)

func TestHTTPClient(t *testing.T) {
	client, err := newClient()
	require.NoError(t, err)
	defer client.CloseIdleConnections()
	var requests []string
	server := httptest.NewServer(inbound(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		setReadDeadline(w, r)
		body, _ := io.ReadAll(r.Body)
		requests = append(requests, fmt.Sprintf("%s %s %q", r.Method, body, r.Header.Get("Idempotency-Key")))
		if len(requests) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})))
	defer server.Close()

	orderID := "order-1"
	req, err := http.NewRequest(http.MethodPost, server.URL, strings.NewReader("charge"))
	require.NoError(t, err)
	// region post
	req = resiliencehttp.Repeatable(req, orderID) // Idempotency-Key: <orderID>, unless there is one already
	// endregion
	send(t, client, req)
	require.Equal(t, []string{`POST charge "order-1"`, `POST charge "order-1"`}, requests)

	send(t, client, upload(t, server.URL))
	require.Equal(t, `PUT a large file ""`, requests[2])
}

func newClient() (*http.Client, error) {
	// region client
	policy, err := resiliencehttp.NewPolicy(resilience.WithBreaker(resilience.BreakerConfig{}))
	if err != nil {
		return nil, err
	}
	return resiliencehttp.NewClient(policy)
	// endregion
}

func send(t *testing.T, client *http.Client, req *http.Request) {
	t.Helper()
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, http.StatusOK, resp.StatusCode)
}

func upload(t *testing.T, url string) *http.Request {
	t.Helper()
	name, size := filepath.Join(t.TempDir(), "file"), int64(len("a large file"))
	require.NoError(t, os.WriteFile(name, []byte("a large file"), 0o600))
	req, err := put(url, name, size)
	require.NoError(t, err)
	return req
}

func put(url, name string, size int64) (*http.Request, error) {
	// region upload
	req, err := http.NewRequest(http.MethodPut, url, nil)
	if err != nil {
		return nil, err
	}
	req.GetBody, req.ContentLength = func() (io.ReadCloser, error) { return os.Open(name) }, size
	req.Body, err = req.GetBody()
	return req, err
	// endregion
}

func inbound(handler http.Handler) http.Handler {
	// region inbound
	handler = resiliencehttp.Inbound(
		resiliencehttp.WithInboundReserve(20*time.Millisecond), // for this service's own work
		resiliencehttp.WithInboundMaximum(time.Minute),         // a larger value is ignored
		resiliencehttp.WithRejectExpired(),                     // 504 instead of work for nobody
	)(handler)
	// endregion
	return handler
}

func setReadDeadline(w http.ResponseWriter, r *http.Request) {
	// region read-deadline
	if at, ok := r.Context().Deadline(); ok {
		_ = http.NewResponseController(w).SetReadDeadline(at)
	}
	// endregion
}
