package resiliencehttp

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/measuredgo/resilience"
)

type base func(*http.Request) (*http.Response, error)

func (f base) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// A leg may make its request when the caller has got the response and uses the request for something else.
func TestLegsMakeTheirRequestsFromACopy(t *testing.T) {
	for _, hedged := range []bool{false, true} {
		req, err := http.NewRequest(http.MethodGet, "http://a/", nil)
		require.NoError(t, err)
		var opts []resilience.Option
		if hedged {
			opts = append(opts, resilience.WithHedge(resilience.HedgeAt(0.9)))
		}
		p, err := NewPolicy(opts...)
		require.NoError(t, err)
		tr, err := NewTransport(base(func(attempt *http.Request) (*http.Response, error) {
			c := attempt.Context().Value(callKey{}).(*call)
			require.Equal(t, hedged, c.req != req)
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: attempt}, nil
		}), p)
		require.NoError(t, err)
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		require.Same(t, req, resp.Request)
	}
}
