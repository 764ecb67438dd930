package resiliencehttp_test

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/measuredgo/resilience"
	"github.com/measuredgo/resilience/resiliencehttp"
)

func TestPublishedQuotas(t *testing.T) {
	unix := func(d time.Duration) string { return strconv.FormatInt(time.Now().Add(d).Unix(), 10) }
	x := func(limit, remaining, reset string) http.Header {
		return http.Header{"X-Ratelimit-Limit": {limit}, "X-Ratelimit-Remaining": {remaining}, "X-Ratelimit-Reset": {reset}}
	}
	standard := func(state, policy string) http.Header {
		return http.Header{"Ratelimit": {state}, "Ratelimit-Policy": {policy}}
	}
	list := func(n int) string { return strings.TrimSuffix(strings.Repeat("a;r=0;t=3,", n), ",") }
	both := func(state, reset string) http.Header {
		h := x("100", "0", reset)
		h["Ratelimit"] = []string{state}
		return h
	}
	tests := map[string]struct {
		published func() http.Header
		blocked   time.Duration
		opts      []resiliencehttp.Option
	}{
		"nothing":               {published: func() http.Header { return http.Header{} }},
		"enough":                {published: func() http.Header { return x("100", "11", "30") }},
		"the reserve":           {published: func() http.Header { return x("100", "10", "30") }, blocked: 30 * time.Second},
		"a smaller reserve":     {published: func() http.Header { return x("100", "10", "30") }, opts: []resiliencehttp.Option{resiliencehttp.WithQuota(0.05)}},
		"no reserve, one left":  {published: func() http.Header { return x("100", "1", "30") }, opts: []resiliencehttp.Option{resiliencehttp.WithQuota(0)}},
		"no reserve, none left": {published: func() http.Header { return x("100", "0", "30") }, opts: []resiliencehttp.Option{resiliencehttp.WithQuota(0)}, blocked: 30 * time.Second},
		"switched off":          {published: func() http.Header { return x("100", "0", "30") }, opts: []resiliencehttp.Option{resiliencehttp.WithoutQuota()}},
		"Unix time":             {published: func() http.Header { return x("100", "0", unix(40*time.Second)) }, blocked: 40 * time.Second},
		"in the past":           {published: func() http.Header { return x("100", "0", unix(-time.Second)) }},
		"Unix milliseconds":     {published: func() http.Header { return x("100", "0", unix(40*time.Second)+"000") }},
		"negative":              {published: func() http.Header { return x("100", "-1", "30") }},
		"a word":                {published: func() http.Header { return x("100", "none", "30") }},
		"a fraction":            {published: func() http.Header { return x("100", "0", "30.5") }},
		"no reset":              {published: func() http.Header { return http.Header{"X-Ratelimit-Limit": {"1"}, "X-Ratelimit-Remaining": {"0"}} }},
		"huge":                  {published: func() http.Header { return x("100", "0", "99999999999999999999") }},

		"standard, enough":      {published: func() http.Header { return standard(`"default";r=50;t=30`, `"default";q=100;w=60`) }},
		"standard, the reserve": {published: func() http.Header { return standard(`"default";r=10;t=30`, `"default";q=100;w=60`) }, blocked: 30 * time.Second},
		"standard goes first": {published: func() http.Header {
			h := x("100", "0", "30")
			h["Ratelimit"] = []string{`"default";r=50;t=30`}
			return h
		}},
		"no policy, none left": {published: func() http.Header { return http.Header{"Ratelimit": {"a;r=0;t=3"}} }, blocked: 3 * time.Second},
		"no policy, one left":  {published: func() http.Header { return http.Header{"Ratelimit": {"a;r=1;t=3"}} }},
		"the longest counts": {published: func() http.Header {
			return http.Header{"Ratelimit": {`"a, b";r=0;t=5`, `"hour";r=1;t=300, "day";r=900;t=9000`}, "Ratelimit-Policy": {`"hour";q=100;w=3600,"day";q=1000`}}
		}, blocked: 300 * time.Second},
		"as many as are read":  {published: func() http.Header { return standard(list(32), "") }, blocked: 3 * time.Second},
		"too many":             {published: func() http.Header { return standard(list(33), "") }},
		"too many policies":    {published: func() http.Header { return standard(list(1), strings.ReplaceAll(list(33), "r=0;t=3", "q=1")) }},
		"as long as is read":   {published: func() http.Header { return standard(list(1)+strings.Repeat(" ", 4<<10-len(list(1))-1), "") }, blocked: 3 * time.Second},
		"too long":             {published: func() http.Header { return standard(list(1)+strings.Repeat(" ", 4<<10-len(list(1))), "") }},
		"hostile":              {published: func() http.Header { return standard(list(40_000), list(40_000)) }},
		"hostile lines":        {published: func() http.Header { return http.Header{"Ratelimit": slices.Repeat([]string{""}, 200_000)} }},
		"unusable, but others": {published: func() http.Header { return both("limit=100, remaining=0, reset=60", "30") }, blocked: 30 * time.Second},
		"hostile, but others":  {published: func() http.Header { return both(list(33), "30") }, blocked: 30 * time.Second},

		"an open quote":    {published: func() http.Header { return standard(`"default;r=0;t=30`, "") }},
		"malformed policy": {published: func() http.Header { return standard(`"default";r=0;t=30`, `"default";=1`) }},
		"no reset at all":  {published: func() http.Header { return standard(`"default";r=0`, `"default";q=100`) }},
		"too far away":     {published: func() http.Header { return standard(`"default";r=0;t=99999999`, `"default";q=100`) }},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(2 * 366 * 24 * time.Hour) // a bubble begins in 2000, before the least Unix time that counts
				n := 0
				headers := c.published()
				base := roundTrip(func(*http.Request) (*http.Response, error) {
					n++
					resp := answer(200, "")
					if n == 1 {
						resp.Header = headers
					}
					return resp, nil
				})
				var told events
				tr := transportOf(t, base, policyOf(t, told.listen(), resilience.WithBreaker(resilience.BreakerConfig{}), resilience.WithAttempts(1)), c.opts...)
				send := func(url string) error {
					_, err := tr.RoundTrip(get(t, url))
					return err
				}
				require.NoError(t, send("http://a/"))
				err := send("http://a/")
				require.NoError(t, send("http://b/"), "another host")
				if c.blocked == 0 {
					require.NoError(t, err)
					require.Empty(t, told.of(resilience.EventRejectedByQuota))
					return
				}
				require.ErrorIs(t, err, resilience.ErrLimited)
				var limited *resilience.LimitedError
				require.ErrorAs(t, err, &limited)
				require.Equal(t, c.blocked, limited.RetryAfter)
				require.Equal(t, c.blocked, told.of(resilience.EventRejectedByQuota)[0].Delay)
				require.Equal(t, 2, n, "the host did not see it")
				require.Equal(t, 1, hostsOf(tr)["http://a"].Breaker().Stats().Calls)
				time.Sleep(c.blocked - 1)
				require.ErrorIs(t, send("http://a/"), resilience.ErrLimited)
				time.Sleep(time.Nanosecond)
				require.NoError(t, send("http://a/"))
			})
		})
	}
}

func TestAQuotaIsWaitedForIfThatFits(t *testing.T) {
	for _, c := range []struct {
		reset string
		calls int
	}{{"20", 2}, {"40", 1}} {
		t.Run(fmt.Sprint(c.reset), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := 0
				base := roundTrip(func(*http.Request) (*http.Response, error) {
					n++
					resp := answer(200, "")
					if n == 1 {
						resp.Header = http.Header{"X-Ratelimit-Limit": {"10"}, "X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": {c.reset}}
					}
					return resp, nil
				})
				p := policyOf(t, resilience.WithBackoff(resilience.Backoff{}))
				tr := transportOf(t, base, p)
				_, err := tr.RoundTrip(get(t, "http://a/"))
				require.NoError(t, err)
				start := time.Now()
				_, err = tr.RoundTrip(get(t, "http://a/"))
				require.Equal(t, c.calls, n)
				if c.calls == 2 {
					require.NoError(t, err)
					require.Equal(t, 20*time.Second, time.Since(start))
					return
				}
				var e *resilience.Error
				require.ErrorAs(t, err, &e)
				require.Equal(t, 40*time.Second, e.RetryAfter)
				require.Zero(t, time.Since(start))
			})
		})
	}
}
