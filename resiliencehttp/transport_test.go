package resiliencehttp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/measuredgo/resilience"
	"github.com/measuredgo/resilience/resiliencehttp"
)

func TestThirtyPercentOfFailuresLeaveNothingBehind(t *testing.T) {
	// Of seven calls three fail once: three of ten requests, whatever the order in which the workers come. A server that
	// counted requests instead could meet ten workers in step and fail the same one every time.
	const calls, workers, failures = 1000, 10, 1000/7*3 + 3
	var failed sync.Map
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		call, err := strconv.Atoi(r.URL.Query().Get("call"))
		if err != nil {
			t.Error(err)
		}
		if _, again := failed.LoadOrStore(call, true); call%7 < 3 && !again {
			http.Error(w, strings.Repeat("overloaded ", 200), http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "fine")
	})
	s.pool.MaxIdleConnsPerHost = workers
	client := &http.Client{Transport: transportOf(t, s.pool, policyOf(t))}

	work := func(from, calls int) {
		var wg sync.WaitGroup
		for worker := range workers {
			wg.Go(func() {
				for i := range calls / workers {
					resp, err := client.Get(fmt.Sprintf("%s?call=%d", s.URL, from+worker*calls/workers+i))
					if err != nil || text(t, resp) != "fine" {
						t.Errorf("%v %v", resp, err)
					}
				}
			})
		}
		wg.Wait()
	}
	work(calls, workers)
	before, connections, warming := runtime.NumGoroutine(), s.open.Load(), s.requests.Load()
	work(0, calls)
	require.Equal(t, int64(calls+failures), s.requests.Load()-warming)
	t.Logf("%d requests over %d connections", s.requests.Load(), s.opened.Load())
	require.LessOrEqual(t, s.opened.Load(), int64(2*workers), "keep-alive connections are used again")
	require.LessOrEqual(t, s.open.Load(), connections+workers)
	back(t, before+2*workers) // each idle connection of a worker has two goroutines, at its client's end
	s.pool.CloseIdleConnections()
	require.Eventually(t, func() bool { return s.open.Load() == 0 }, 5*time.Second, 10*time.Millisecond)
}

func TestThePlainPathStartsNoGoroutine(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	most := 0
	base := roundTrip(func(*http.Request) (*http.Response, error) {
		most = max(most, runtime.NumGoroutine())
		return answer(200, "text"), nil
	})
	tr := transportOf(t, base, policyOf(t, resilience.WithBreaker(resilience.BreakerConfig{})))
	before := runtime.NumGoroutine()
	var open []*http.Response
	for range 100 {
		resp, err := tr.RoundTrip(get(t, "http://a/").WithContext(ctx))
		require.NoError(t, err)
		_, err = resp.Body.Read(make([]byte, 1))
		require.NoError(t, err)
		open = append(open, resp)
	}
	require.LessOrEqual(t, max(most, runtime.NumGoroutine()), before)
	for _, resp := range open {
		require.NoError(t, resp.Body.Close())
	}
}

// BR-064: responses between attempts are not closed or drained.
func TestSupersededResponsesGiveTheirConnectionBack(t *testing.T) {
	var n atomic.Int64
	s := serve(t, false, func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1)%4 != 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, strings.Repeat("x", 2048))
		}
	})
	s.pool.MaxConnsPerHost = 1
	client := &http.Client{Transport: transportOf(t, s.pool, policyOf(t, resilience.WithAttempts(4)))}
	for range 100 {
		resp, err := client.Get(s.URL)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, resp.StatusCode)
		text(t, resp)
	}
	require.Equal(t, int64(400), s.requests.Load())
	require.Equal(t, int64(1), s.opened.Load())
}

func TestDiscardedBodiesAreClosedOnce(t *testing.T) {
	stop := resilience.WithRules(resilience.OnResult("stop", func(r *http.Response) resilience.Verdict {
		if r.StatusCode == http.StatusTeapot {
			return resilience.Permanent
		}
		return resilience.Transient
	}))
	tests := map[string]struct {
		statuses []int
		policy   []resilience.Option
		cancel   bool
		answered bool
	}{
		"attempts exhausted": {statuses: []int{503, 503, 503}, answered: true},
		"rule says stop":     {statuses: []int{503, 418}, policy: []resilience.Option{stop}, answered: true},
		"cancelled in the backoff": {
			statuses: []int{503}, cancel: true,
			policy: []resilience.Option{resilience.WithBackoff(resilience.ConstantBackoff(time.Second))},
		},
		"budget refuses": {
			statuses: []int{503, 503}, answered: true,
			policy: []resilience.Option{resilience.WithBudget(resilience.BudgetConfig{Fraction: 0.01, MinPerSecond: 0.1})},
		},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var bodies []*tracked
				base := roundTrip(func(*http.Request) (*http.Response, error) {
					b := newTracked("text")
					bodies = append(bodies, b)
					return &http.Response{StatusCode: c.statuses[len(bodies)-1], Header: http.Header{}, Body: b}, nil
				})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.cancel {
					time.AfterFunc(500*time.Millisecond, cancel)
				}
				resp, err := transportOf(t, base, policyOf(t, c.policy...)).RoundTrip(get(t, "http://a/").WithContext(ctx))
				require.Len(t, bodies, len(c.statuses))
				for _, b := range bodies[:len(bodies)-1] {
					require.EqualValues(t, 1, b.closes.Load())
				}
				last := bodies[len(bodies)-1]
				if !c.answered {
					require.Nil(t, resp)
					require.ErrorIs(t, err, context.Canceled)
					require.EqualValues(t, 1, last.closes.Load())
					return
				}
				require.NoError(t, err)
				require.Zero(t, last.closes.Load(), "the caller's response is open")
				require.Equal(t, "text", text(t, resp))
				require.EqualValues(t, 1, last.closes.Load())
			})
		})
	}
}

// BR-066: after the last attempt the response is lost or its body already closed.
func TestTheLastAnswerIsTheAnswer(t *testing.T) {
	s := serve(t, false, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Id", "7")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, "overloaded")
	})
	client := &http.Client{Transport: transportOf(t, s.pool, policyOf(t))}
	resp, err := client.Get(s.URL)
	require.NoError(t, err)
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	require.Equal(t, "7", resp.Header.Get("X-Id"))
	require.Equal(t, "overloaded", text(t, resp))
	require.EqualValues(t, 3, s.requests.Load())

	s.CloseClientConnections()
	s.Close()
	_, err = client.Get(s.URL)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.ErrorIs(t, err, resilience.ErrAttemptsExhausted)
	var outer *url.Error
	require.ErrorAs(t, err, &outer)
	require.False(t, errors.As(outer.Err, new(*url.Error)), "one *url.Error in the chain")
}

// BR-066: what the caller gets when the breaker opens between the attempts is the last real response.
func TestABreakerThatOpensLeavesTheAnswer(t *testing.T) {
	n := 0
	base := roundTrip(func(*http.Request) (*http.Response, error) { n++; return answer(500, "broken"), nil })
	tr := transportOf(t, base, policyOf(t, resilience.WithBreaker(resilience.BreakerConfig{ConsecutiveFailures: 2})))
	resp, err := tr.RoundTrip(get(t, "http://a/"))
	require.NoError(t, err)
	require.Equal(t, "broken", text(t, resp))
	require.Equal(t, 2, n)
	_, err = tr.RoundTrip(get(t, "http://a/"))
	require.ErrorIs(t, err, resilience.ErrBreakerOpen)
	require.Equal(t, 2, n)
}

// A base that breaks the rules of http.RoundTripper must not make the transport break them.
func TestResponseAndErrorAreNeverBothThere(t *testing.T) {
	b := newTracked("x")
	broken := errors.New("broken")
	both := roundTrip(func(*http.Request) (*http.Response, error) { return &http.Response{Body: b}, broken })
	resp, err := transportOf(t, both, policyOf(t)).RoundTrip(get(t, "http://a/"))
	require.Nil(t, resp)
	require.Equal(t, broken, err, "a permanent error comes back untouched")
	require.EqualValues(t, 1, b.closes.Load())

	none := roundTrip(func(*http.Request) (*http.Response, error) { return nil, nil })
	resp, err = transportOf(t, none, policyOf(t)).RoundTrip(get(t, "http://a/"))
	require.Nil(t, resp)
	require.ErrorContains(t, err, "neither a response nor an error")

	bodyless := roundTrip(func(*http.Request) (*http.Response, error) { return &http.Response{StatusCode: http.StatusOK}, nil })
	resp, err = transportOf(t, bodyless, policyOf(t)).RoundTrip(get(t, "http://a/"))
	require.NoError(t, err)
	require.Equal(t, http.NoBody, resp.Body)
}

func TestAPanicOfTheBaseReleasesTheExchange(t *testing.T) {
	var ctx context.Context
	base := roundTrip(func(req *http.Request) (*http.Response, error) {
		ctx = req.Context()
		panic("boom")
	})
	tr := transportOf(t, base, policyOf(t))
	require.PanicsWithValue(t, "boom", func() { _, _ = tr.RoundTrip(get(t, "http://a/")) })
	require.Error(t, ctx.Err())
}

func TestTheZeroPolicyIsTheBase(t *testing.T) {
	var seen *http.Request
	want := answer(503, "")
	base := roundTrip(func(req *http.Request) (*http.Response, error) { seen = req; return want, nil })
	tr := transportOf(t, base, resilience.Policy{})
	req := get(t, "http://a/")
	resp, err := tr.RoundTrip(req)
	require.NoError(t, err)
	require.Same(t, want, resp)
	require.Same(t, req, seen)
	require.Empty(t, hostsOf(tr))
}

func TestARequestWithoutURL(t *testing.T) {
	b := newTracked("x")
	_, err := transportOf(t, nil, policyOf(t)).RoundTrip(&http.Request{Body: b})
	require.ErrorContains(t, err, "no URL")
	require.EqualValues(t, 1, b.closes.Load())
}

// BR-059: header map shared between attempts; the caller's request is changed.
func TestTheCallersRequestIsNotChanged(t *testing.T) {
	var attempts atomic.Int64
	idle := &idleCounter{roundTrip: func(req *http.Request) (*http.Response, error) {
		n := attempts.Add(1)
		req.Header.Add("X-Attempt", fmt.Sprint(n))
		q := req.URL.Query()
		q.Set("attempt", fmt.Sprint(n))
		req.URL.RawQuery = q.Encode()
		if req.Body != nil {
			_ = req.Body.Close()
		}
		if n%3 != 0 {
			return answer(503, "no"), nil
		}
		return answer(200, "yes"), nil
	}}
	tr := transportOf(t, idle, policyOf(t), resiliencehttp.WithDeadlineHeader(""), resiliencehttp.WithCriticalityHeader(""))
	req := request(t, http.MethodPut, "http://a/?q=1", strings.NewReader("text"))
	req.Header.Set("X-Mine", "1")
	header, body, before := req.Header.Clone(), req.Body, *req
	for range 100 {
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		require.Equal(t, "yes", text(t, resp))
		require.Same(t, req, resp.Request)
	}
	require.EqualValues(t, 300, attempts.Load())
	require.Equal(t, header, req.Header)
	require.Equal(t, "http://a/?q=1", req.URL.String())
	require.Equal(t, body, req.Body)
	require.Equal(t, before.ContentLength, req.ContentLength)
	require.Equal(t, before.Context(), req.Context())
	got, err := req.GetBody()
	require.NoError(t, err)
	require.NotNil(t, got)

	bare := &http.Request{Method: http.MethodGet, URL: req.URL}
	_, err = tr.RoundTrip(bare)
	require.NoError(t, err)
	require.Nil(t, bare.Header)

	(&http.Client{Transport: tr}).CloseIdleConnections()
	require.Equal(t, 1, idle.closed)
}

type idleCounter struct {
	roundTrip
	closed int
}

func (c *idleCounter) CloseIdleConnections() { c.closed++ }

// BR-015: nested policies multiply the attempts.
func TestLayersDoNotMultiply(t *testing.T) {
	count := func(t *testing.T, outer []resilience.Option, layers int, opts ...resilience.Option) int {
		n := 0
		var rt http.RoundTripper = roundTrip(func(*http.Request) (*http.Response, error) {
			n++
			return nil, syscall.ECONNREFUSED
		})
		for range layers {
			rt = transportOf(t, rt, policyOf(t, opts...))
		}
		p := policyOf(t, append(outer, opts...)...)
		_, err := resilience.Do(t.Context(), p, func(ctx context.Context) (*http.Response, error) {
			return rt.RoundTrip(get(t, "http://a/").WithContext(ctx))
		})
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		return n
	}
	var told events
	require.Equal(t, 3, count(t, []resilience.Option{told.listen()}, 1), "the transport retries, the policy around it does not")
	require.Len(t, told.of(resilience.EventNestedRetry), 1)
	require.Equal(t, 3, count(t, nil, 2))
	require.Equal(t, 9, count(t, nil, 1, resilience.WithNestedRetries(true)))
	require.Equal(t, 27, count(t, nil, 2, resilience.WithNestedRetries(true)))
}

// A retry marker that came in from outside, passed on by a proxy.
func TestARequestThatIsAlreadyRetriedIsSentOnce(t *testing.T) {
	for _, nested := range []bool{false, true} {
		t.Run(fmt.Sprint("nested retries ", nested), func(t *testing.T) {
			var told events
			var markers [][]string
			base := roundTrip(func(req *http.Request) (*http.Response, error) {
				markers = append(markers, req.Header["X-Resilience-Retrying"])
				return answer(503, ""), nil
			})
			p := policyOf(t, told.listen(), resilience.WithNestedRetries(nested), resilience.WithBreaker(resilience.BreakerConfig{}))
			tr := transportOf(t, base, p)
			req := get(t, "http://a/")
			req.Header.Set("X-Resilience-Retrying", "1")
			_, err := tr.RoundTrip(req)
			require.NoError(t, err)
			want, warnings := 1, 1
			if nested {
				want, warnings = 3, 0
			}
			require.Equal(t, slices.Repeat([][]string{{"1"}}, want), markers)
			require.Len(t, told.of(resilience.EventNestedRetry), warnings)
			require.Equal(t, want, hostsOf(tr)["http://a"].Breaker().Stats().Calls, "the guards are fed")
		})
	}
}

func TestOnlyRequestsThatMayBeRetriedSaySo(t *testing.T) {
	var marked bool
	base := roundTrip(func(req *http.Request) (*http.Response, error) {
		_, marked = req.Header["X-Resilience-Retrying"]
		return answer(200, ""), nil
	})
	send := func(p resilience.Policy, method string) bool {
		_, err := transportOf(t, base, p).RoundTrip(request(t, method, "http://a/", nil))
		require.NoError(t, err)
		return marked
	}
	require.True(t, send(policyOf(t), http.MethodGet))
	require.False(t, send(policyOf(t), http.MethodPost))
	require.False(t, send(policyOf(t, resilience.WithAttempts(1)), http.MethodGet))
}

func TestHeadersOfTheAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type sent struct{ deadline, criticality string }
		var seen []sent
		base := roundTrip(func(req *http.Request) (*http.Response, error) {
			seen = append(seen, sent{req.Header.Get("X-Deadline-Ms"), req.Header.Get("X-Importance")})
			time.Sleep(800*time.Millisecond + time.Microsecond)
			return answer(503, ""), nil
		})
		p := policyOf(t, resilience.WithDeadline(2*time.Second), resilience.WithAttemptTimeout(1500*time.Millisecond))
		tr := transportOf(t, base, p, resiliencehttp.WithDeadlineHeader(""), resiliencehttp.WithCriticalityHeader("x-importance"))
		req := get(t, "http://a/")
		req.Header.Set("X-Deadline-Ms", "999999")
		req.Header.Set("X-Importance", "critical-plus")
		ctx := resilience.ContextWithCriticality(req.Context(), resilience.Sheddable)
		_, err := tr.RoundTrip(req.WithContext(ctx))
		require.ErrorIs(t, err, resilience.ErrDeadlineExceeded)
		require.Equal(t, []sent{{"1500", "sheddable"}, {"1199", "sheddable"}, {"399", "sheddable"}}, seen)

		seen = nil
		p = policyOf(t, resilience.WithDeadline(500*time.Microsecond))
		tr = transportOf(t, base, p, resiliencehttp.WithDeadlineHeader(""))
		_, _ = tr.RoundTrip(req)
		require.Equal(t, "1", seen[0].deadline, "rounded down, but at least 1")

		seen = nil
		p = policyOf(t, resilience.WithDeadline(resilience.Unbounded), resilience.WithAttemptTimeout(resilience.Unbounded), resilience.WithAttempts(1))
		tr = transportOf(t, base, p, resiliencehttp.WithDeadlineHeader(""))
		_, _ = tr.RoundTrip(req)
		require.Equal(t, "999999", seen[0].deadline, "nothing to say")
	})
}

func TestTransportOptionsAreChecked(t *testing.T) {
	_, err := resiliencehttp.NewTransport(nil, policyOf(t),
		resiliencehttp.WithMaxHosts(0), resiliencehttp.WithMaxBodyBuffer(-1), resiliencehttp.WithQuota(1), nil,
		resiliencehttp.WithDeadlineHeader("a b"), resiliencehttp.WithBufferedResponses(), resiliencehttp.WithResumedDownloads())
	for _, part := range []string{
		"WithMaxHosts is 0, want at least 1", "WithMaxBodyBuffer is -1", "WithQuota is 1", "option 4 is <nil>",
		`WithDeadlineHeader is "a b"`, "WithBufferedResponses",
	} {
		require.ErrorContains(t, err, part)
	}
	_, err = resiliencehttp.NewClient(policyOf(t), resiliencehttp.WithMaxHosts(-1))
	require.EqualError(t, err, "resiliencehttp: NewClient: WithMaxHosts is -1, want at least 1")
	for range 20 {
		_, err = resiliencehttp.NewTransport(nil, policyOf(t), resiliencehttp.WithCriticalityHeader("c d"), resiliencehttp.WithDeadlineHeader("a b"))
		require.EqualError(t, err, `resiliencehttp: NewTransport: WithDeadlineHeader is "a b", want the name of a header`+"\n"+
			`resiliencehttp: NewTransport: WithCriticalityHeader is "c d", want the name of a header`, "always in the same order")
	}
	client, err := resiliencehttp.NewClient(policyOf(t))
	require.NoError(t, err)
	require.Zero(t, client.Timeout)
}

func TestNewPolicyLetsTheUserWin(t *testing.T) {
	p, err := resiliencehttp.NewPolicy()
	require.NoError(t, err)
	require.Equal(t, "http", p.Name())

	base := roundTrip(func(*http.Request) (*http.Response, error) { return answer(503, ""), nil })
	n := 0
	p, err = resiliencehttp.NewPolicy(
		resilience.WithName("mine"), resilience.WithClassifier(resilience.RetryAll()), resilience.WithListener(func(e resilience.Event) {
			if e.Kind == resilience.EventAttempt {
				n++
			}
		}))
	require.NoError(t, err)
	require.Equal(t, "mine", p.Name())
	_, err = transportOf(t, base, p).RoundTrip(get(t, "http://a/"))
	require.NoError(t, err)
	require.Equal(t, 1, n, "the user's classifier has no rule for responses")

	_, err = resiliencehttp.NewPolicy(resilience.WithAttempts(0))
	require.ErrorContains(t, err, "WithAttempts")
	require.ErrorContains(t, err, "NewPolicy")
}
