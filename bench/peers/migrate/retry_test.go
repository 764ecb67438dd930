package migrate

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBothSidesOfTheRetryLibrariesDoTheSame(t *testing.T) {
	calls := 0
	var answers []error
	bounded := false
	script := func(ctx context.Context, _ string) (int, error) {
		at, ok := ctx.Deadline()
		bounded = ok && time.Until(at) <= time.Second
		if calls++; calls <= len(answers) {
			return 0, answers[calls-1]
		}
		return 7, nil
	}
	for name, c := range map[string]Client{
		"retry-go": &retryGoClient{script}, "go-retry": &goRetryClient{script}, "after them": newRetriedClient(script),
	} {
		t.Run(name, func(t *testing.T) {
			for _, test := range []struct {
				answers []error
				calls   int
				err     error
			}{
				{[]error{errDown}, 2, nil},
				{[]error{errDown, errDown, errDown, errDown}, 3, errDown},
				{[]error{ErrUnknownKey}, 1, ErrUnknownKey},
			} {
				calls, answers = 0, test.answers
				_, err := c.Get(t.Context(), "bolt")
				require.ErrorIs(t, err, test.err)
				require.Equal(t, test.calls, calls)
				require.True(t, bounded, "each attempt has its own timeout")
			}
		})
	}
}

func TestBothSidesOfTheHTTPClientsDoTheSame(t *testing.T) {
	var requests atomic.Int64
	statuses := []int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if n := int(requests.Add(1)); n <= len(statuses) {
			w.WriteHeader(statuses[n-1])
		}
	}))
	defer server.Close()
	after, err := newPolicyHTTP()
	require.NoError(t, err)
	for name, c := range map[string]*http.Client{"go-retryablehttp": newRetryableHTTP(), "after it": after} {
		defer c.CloseIdleConnections()
		for _, test := range []struct {
			statuses []int
			requests int64
			status   int
		}{
			{[]int{503}, 2, 200},
			{[]int{503, 503, 503, 503}, 3, 503},
			{[]int{404}, 1, 404},
			{[]int{501}, 1, 501},
		} {
			requests.Store(0)
			statuses = test.statuses
			resp, err := c.Get(server.URL)
			require.NoError(t, err, name)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, test.status, resp.StatusCode, name)
			require.Equal(t, test.requests, requests.Load(), name)
		}
	}

	// What differs: a POST.
	for c, want := range map[*http.Client]int64{newRetryableHTTP(): 3, after: 1} {
		requests.Store(0)
		statuses = []int{503, 503, 503}
		resp, err := c.Post(server.URL, "text/plain", strings.NewReader("one bolt"))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, want, requests.Load())
	}
}
