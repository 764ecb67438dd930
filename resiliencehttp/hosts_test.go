package resiliencehttp_test

import (
	"fmt"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/measuredgo/resilience"
	"github.com/measuredgo/resilience/resiliencehttp"
)

func hostsOf(tr *resiliencehttp.Transport) map[string]resilience.Policy {
	return maps.Collect(tr.Hosts())
}

func TestHostsShareWhatNamesTheSameHost(t *testing.T) {
	base := roundTrip(func(*http.Request) (*http.Response, error) { return answer(200, ""), nil })
	tests := map[string][]string{
		"https://example.com": {"https://example.com/", "https://Example.COM", "https://example.com.", "https://example.com:443/x", "https://example.com.:443"},
		"http://example.com":  {"http://example.com/", "http://example.com:80", "http://example.com:"},
		"https://a:80":        {"https://a:80", "https://A.:80/"},
		"http://[::1]":        {"http://[::1]", "http://[::1]:80"},
		"http://[::1]:8080":   {"http://[::1]:8080"},
	}
	p := policyOf(t)
	all := transportOf(t, base, p)
	for host, urls := range tests {
		tr := transportOf(t, base, p)
		for _, u := range urls {
			for _, to := range []*resiliencehttp.Transport{tr, all} {
				_, err := to.RoundTrip(get(t, u))
				require.NoError(t, err, u)
			}
		}
		require.Equal(t, []string{host}, slices.Collect(maps.Keys(hostsOf(tr))))
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(tests)), slices.Collect(maps.Keys(hostsOf(all))))
	require.Equal(t, "http:[::1]:8080", hostsOf(all)["http://[::1]:8080"].Name())
	require.Equal(t, "http:example.com", hostsOf(all)["https://example.com"].Name())
	for range all.Hosts() {
		break
	}
}

func TestWithoutPerHostThePolicyItselfIsUsed(t *testing.T) {
	base := roundTrip(func(*http.Request) (*http.Response, error) { return nil, fmt.Errorf("x: %w", http.ErrServerClosed) })
	p := policyOf(t, resilience.WithBreaker(resilience.BreakerConfig{}), resilience.WithRules(resilience.OnErrorIs(http.ErrServerClosed, resilience.Transient)))
	tr := transportOf(t, base, p, resiliencehttp.WithPerHost(false))
	for _, u := range []string{"http://a", "http://b"} {
		_, err := tr.RoundTrip(get(t, u))
		require.ErrorIs(t, err, http.ErrServerClosed)
	}
	require.Equal(t, resilience.StateOpen, p.Breaker().State())
	require.Empty(t, hostsOf(tr))
}

func TestASlowHostDoesNotLoosenOrTightenTheCeilingOfAFastOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		takes := map[string]time.Duration{"fast": 10 * time.Millisecond, "slow": 200 * time.Millisecond}
		base := roundTrip(func(req *http.Request) (*http.Response, error) {
			time.Sleep(takes[req.URL.Host])
			return answer(200, ""), nil
		})
		p, err := resiliencehttp.NewPolicy(resilience.WithAttemptCeiling(resilience.AttemptCeiling{
			Multiple: 3, Floor: time.Millisecond, MinSamples: 5,
		}))
		require.NoError(t, err)
		tr := transportOf(t, base, p)
		for range 8 {
			for host := range takes {
				resp, err := tr.RoundTrip(get(t, "http://"+host))
				require.NoError(t, err)
				text(t, resp)
			}
		}
		for host, took := range takes {
			ceiling, warm := hostsOf(tr)["http://"+host].Measured().AttemptCeiling.Get()
			require.True(t, warm)
			require.InEpsilon(t, 3*took, ceiling, 0.06, host)
		}
		_, warm := p.Measured().AttemptCeiling.Get()
		require.False(t, warm, "the template learns nothing")
	})
}

// BR-071: state per host grows without end.
func TestMadeUpHostsDoNotFillMemory(t *testing.T) {
	made := 200_000
	if raceDetector || testing.Short() {
		made = 20_000
	}
	enter, leave := make(chan struct{}), make(chan struct{})
	base := roundTrip(func(req *http.Request) (*http.Response, error) {
		switch req.URL.Path {
		case "/fail":
			return answer(500, ""), nil
		case "/wait":
			enter <- struct{}{}
			<-leave
		}
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
	})
	p := policyOf(t, resilience.WithDeadline(time.Hour), resilience.WithAttemptTimeout(time.Hour),
		resilience.WithAttempts(1), resilience.WithBreaker(resilience.BreakerConfig{ConsecutiveFailures: 1, OpenFor: time.Hour, MaxOpenFor: time.Hour}),
		resilience.WithLimiter(resilience.FixedLimit(10)))
	tr := transportOf(t, base, p)
	send := func(url string) {
		resp, err := tr.RoundTrip(get(t, url))
		if err != nil {
			t.Error(err)
			return
		}
		_ = resp.Body.Close()
	}
	before, goroutines := liveHeap(), runtime.NumGoroutine()
	for i := range 5 {
		send(fmt.Sprintf("http://open%d/fail", i))
	}
	var busy sync.WaitGroup
	for i := range 3 {
		busy.Go(func() { send(fmt.Sprintf("http://busy%d/wait", i)) })
		<-enter
	}
	for i := range made {
		send(fmt.Sprintf("http://host%d.example/", i))
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), goroutines+3, "no goroutine for a host")
	require.Less(t, liveHeap()-before, int64(10<<20))
	hosts := hostsOf(tr)
	require.LessOrEqual(t, len(hosts), 1024)
	for i := range 5 {
		require.Contains(t, hosts, fmt.Sprintf("http://open%d", i))
	}
	for i := range 3 {
		require.Contains(t, hosts, fmt.Sprintf("http://busy%d", i))
	}
	close(leave)
	busy.Wait()
}
