package resiliencehttp

import (
	"net/http"
	"strings"
	"sync"
	"time"
)

// quota is what a host has published about its rate limit: until when this side keeps quiet. The zero quota blocks
// nothing. It is safe for concurrent use.
type quota struct {
	mu    sync.Mutex // guards until
	until time.Time  // on the policy's clock
}

// blocked is how long to keep quiet. It looks at the clock only if there is something to wait for.
func (q *quota) blocked(now func() time.Time) time.Duration {
	q.mu.Lock()
	until := q.until
	q.mu.Unlock()
	if until.IsZero() {
		return 0
	}
	return until.Sub(now())
}

// observe takes in what a response says. Of several limits the one that blocks longest counts; headers that say nothing
// usable change nothing.
func (q *quota) observe(h http.Header, now time.Time, reserve float64) {
	limits, ok := publishedLimits(h, now)
	if !ok {
		return
	}
	var wait time.Duration
	for _, l := range limits {
		if float64(l.remaining) <= float64(l.limit)*reserve {
			wait = max(wait, l.reset)
		}
	}
	until := time.Time{}
	if wait > 0 {
		until = now.Add(wait)
	}
	q.mu.Lock()
	q.until = until
	q.mu.Unlock()
}

// published is one rate limit of a server. A limit of 0 is one that it did not tell.
type published struct {
	limit, remaining int64
	reset            time.Duration // from now
}

// maxReset is the longest window that is believed. Some servers send the reset in milliseconds since 1970: taken at its
// word that would silence this side for ever.
const maxReset = 31 * 24 * time.Hour

func publishedLimits(h http.Header, now time.Time) ([]published, bool) {
	if limits, ok := standardLimits(h["Ratelimit"], h["Ratelimit-Policy"]); ok {
		return limits, true
	}
	if h["X-Ratelimit-Remaining"] == nil {
		return nil, false
	}
	return customaryLimit(h, now)
}

// customaryLimit reads the X-RateLimit headers, whose reset is in seconds: from now, or since 1970 if it is as large as that.
func customaryLimit(h http.Header, now time.Time) ([]published, bool) {
	limit, ok1 := digits(strings.TrimSpace(h.Get("X-Ratelimit-Limit")))
	remaining, ok2 := digits(strings.TrimSpace(h.Get("X-Ratelimit-Remaining")))
	seconds, ok3 := digits(strings.TrimSpace(h.Get("X-Ratelimit-Reset")))
	if !ok1 || !ok2 || !ok3 {
		return nil, false
	}
	const unix = 1_000_000_000
	reset := saturated(seconds, time.Second)
	if seconds >= unix {
		reset = time.Unix(seconds, 0).Sub(now)
	}
	return []published{{limit, remaining, reset}}, reset <= maxReset
}

// standardLimits reads the fields RateLimit ("name";r=remaining;t=seconds) and RateLimit-Policy ("name";q=limit) of
// draft-ietf-httpapi-ratelimit-headers. A limit without a reset cannot be waited for and is left out.
func standardLimits(state, policy []string) ([]published, bool) {
	states, ok1 := items(state)
	policies, ok2 := items(policy)
	if !ok1 || !ok2 {
		return nil, false
	}
	var limits []published
	for _, s := range states {
		remaining, ok1 := s.parameter("r")
		seconds, ok2 := s.parameter("t")
		if !ok1 || !ok2 {
			continue
		}
		l := published{remaining: remaining, reset: saturated(seconds, time.Second)}
		if l.reset > maxReset {
			return nil, false
		}
		for _, p := range policies {
			if q, ok := p.parameter("q"); ok && p.name == s.name {
				l.limit = q
			}
		}
		limits = append(limits, l)
	}
	return limits, len(limits) > 0
}

// item is a string or a token with parameters, of a list in RFC 9651.
type item struct {
	name       string
	parameters map[string]string
}

// parameter is the value of a parameter that is a whole number and not negative.
func (i item) parameter(key string) (int64, bool) { return digits(i.parameters[key]) }

// A list of limits is short. What is longer counts as malformed: how much work it is to read is not for the server to say.
const (
	maxListLength = 4 << 10
	maxListItems  = 32
)

// items reads a list, which may be spread over several lines. One malformed item makes the whole list malformed.
func items(lines []string) ([]item, bool) {
	length := 0
	for _, line := range lines {
		length += len(line) + len(",")
	}
	if length > maxListLength {
		return nil, false
	}
	list := strings.Join(lines, ",")
	if list == "" {
		return nil, true
	}
	members, ok := split(list, ',')
	if !ok || len(members) > maxListItems {
		return nil, false
	}
	var found []item
	for _, member := range members {
		parts, _ := split(member, ';')
		i := item{parameters: make(map[string]string, len(parts)-1)}
		if i.name, ok = name(parts[0]); !ok {
			return nil, false
		}
		for _, part := range parts[1:] {
			key, value, _ := strings.Cut(part, "=") // one without a value is a flag
			if !isToken(key) {
				return nil, false
			}
			i.parameters[key] = value
		}
		found = append(found, i)
	}
	return found, true
}

// name is that of an item, without its quotes.
func name(s string) (string, bool) {
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		return s[1 : len(s)-1], true
	}
	return s, isToken(s)
}

// split cuts at a separator outside of quotes and trims blanks. A quote that is left open is malformed.
func split(s string, separator byte) (parts []string, ok bool) {
	quoted, start := false, 0
	for i := 0; i < len(s); i++ {
		switch {
		case quoted && s[i] == '\\':
			i++
		case s[i] == '"':
			quoted = !quoted
		case s[i] == separator && !quoted:
			parts = append(parts, strings.Trim(s[start:i], " \t"))
			start = i + 1
		}
	}
	return append(parts, strings.Trim(s[start:], " \t")), !quoted
}
