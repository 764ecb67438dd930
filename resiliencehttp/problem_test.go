package resiliencehttp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/measuredgo/resilience"
	"github.com/measuredgo/resilience/resiliencehttp"
)

func TestProblems(t *testing.T) {
	secret := errors.New("dial tcp db.internal:5432: password=hunter2")
	call := func(r resilience.Reason, err error, after time.Duration) error {
		return fmt.Errorf("load: %w", &url.Error{Op: "Get", URL: "http://db.internal", Err: &resilience.Error{
			Policy: "http:db.internal", Reason: r, Err: err, RetryAfter: after, Total: 3,
		}})
	}
	tests := map[string]struct {
		err    error
		status int // 0: not ours
		after  string
	}{
		"deadline":            {call(resilience.ReasonDeadlineExceeded, secret, 0), 504, ""},
		"exhausted":           {call(resilience.ReasonAttemptsExhausted, secret, 0), 502, ""},
		"exhausted, hint":     {call(resilience.ReasonAttemptsExhausted, secret, 90*time.Second), 502, "90"},
		"attempt timeout":     {call(resilience.ReasonAttemptsExhausted, resilience.ErrAttemptTimeout, 0), 504, ""},
		"exhausted by stalls": {call(resilience.ReasonAttemptsExhausted, fmt.Errorf("%w: db.internal", resilience.ErrStalled), 0), 504, ""},
		"limited":             {call(resilience.ReasonAttemptsExhausted, &resilience.LimitedError{Limiter: "db.internal"}, 0), 503, ""},
		"breaker":             {call(resilience.ReasonBreakerOpen, secret, 1001*time.Millisecond), 503, "2"},
		"budget":              {call(resilience.ReasonBudgetExhausted, secret, time.Millisecond), 503, "1"},
		"draining":            {call(resilience.ReasonDraining, secret, 0), 503, ""},
		"cancelled":           {call(resilience.ReasonCancelled, context.Canceled, 0), 0, ""},
		"a bare limit":        {&resilience.LimitedError{Limiter: "db.internal", RetryAfter: 2 * time.Second}, 503, "2"},
		"a bare breaker":      {fmt.Errorf("db.internal: %w", resilience.ErrBreakerOpen), 503, ""},
		"a body that stalls":  {fmt.Errorf("%w: db.internal", resilience.ErrStalled), 504, ""},
		"a body cut short":    {resilience.ErrDeadlineExceeded, 504, ""},
		"the longest hint":    {&resilience.LimitedError{RetryAfter: resilience.Unbounded}, 503, "9223372037"},
		"not ours":            {secret, 0, ""},
		"somebody's timeout":  {context.DeadlineExceeded, 0, ""},
		"nil":                 {nil, 0, ""},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			w := httptest.NewRecorder()
			w.Header().Set("Content-Length", "7")
			ok := resiliencehttp.WriteProblem(w, httptest.NewRequest(http.MethodGet, "/orders/7?token=x", nil), c.err)
			require.Equal(t, c.status != 0, ok)
			if !ok {
				require.Zero(t, w.Body.Len())
				require.Equal(t, http.Header{"Content-Length": {"7"}}, w.Header())
				return
			}
			require.Equal(t, c.status, w.Code)
			require.Equal(t, c.after, w.Header().Get("Retry-After"))
			require.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
			require.Empty(t, w.Header().Get("Content-Length"))
			require.NotContains(t, w.Body.String(), "internal")
			require.NotContains(t, w.Body.String(), "hunter2")
			var doc map[string]any
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &doc))
			require.Equal(t, "about:blank", doc["type"])
			require.EqualValues(t, c.status, doc["status"])
			require.Equal(t, http.StatusText(c.status), doc["title"])
			require.Equal(t, "/orders/7", doc["instance"])
			require.NotEmpty(t, doc["detail"])
		})
	}
	require.True(t, resiliencehttp.WriteProblem(httptest.NewRecorder(), nil, resilience.ErrDeadlineExceeded))
}
