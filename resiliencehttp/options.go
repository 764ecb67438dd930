package resiliencehttp

import (
	"errors"
	"fmt"
	"net/textproto"
	"strings"
)

// The headers that this package reads and writes where no other name is given.
const (
	deadlineHeader    = "X-Deadline-Ms"
	criticalityHeader = "X-Criticality"
	retryingHeader    = "X-Resilience-Retrying"
	idempotencyHeader = "Idempotency-Key"
)

// Option is one setting of a Transport. Of the same setting given twice the later one counts. WithQuota and WithoutQuota
// are one setting.
type Option interface{ apply(s *settings) }

type option func(*settings)

func (o option) apply(s *settings) { o(s) }

type settings struct {
	shared        bool // one policy for all hosts
	maxHosts      int
	retriesUnsafe bool
	bodyLimit     int64
	buffers       bool
	resumes       bool
	deadline      string // name of the header, empty: none
	criticality   string // likewise
	quota         bool
	reserve       float64

	subject  string // the constructor that was called
	problems []error
}

func newSettings(subject string, opts []Option) (settings, error) {
	s := settings{subject: subject, maxHosts: 1024, bodyLimit: 1 << 20, quota: true, reserve: 0.1}
	for i, o := range opts {
		if o == nil {
			s.refuse(fmt.Sprintf("option %d", i+1), nil, "an Option")
			continue
		}
		o.apply(&s)
	}
	s.check()
	return s, errors.Join(s.problems...)
}

func (s *settings) check() {
	if s.maxHosts < 1 {
		s.refuse("WithMaxHosts", s.maxHosts, "at least 1")
	}
	if s.bodyLimit < 0 {
		s.refuse("WithMaxBodyBuffer", s.bodyLimit, "at least 0, which buffers nothing")
	}
	if !(s.reserve >= 0 && s.reserve < 1) {
		s.refuse("WithQuota", s.reserve, "at least 0 and less than 1")
	}
	if s.buffers && s.resumes {
		s.refuse("WithResumedDownloads", "on", "no WithBufferedResponses: a response that is read inside of the attempt is retried, not resumed")
	}
	for _, named := range [][2]string{{"WithDeadlineHeader", s.deadline}, {"WithCriticalityHeader", s.criticality}} {
		if option, header := named[0], named[1]; header != "" && !isToken(header) {
			s.refuse(option, fmt.Sprintf("%q", header), "the name of a header")
		}
	}
}

func (s *settings) refuse(option string, value any, accepted string) {
	s.problems = append(s.problems, fmt.Errorf("resiliencehttp: %s: %s is %v, want %s", s.subject, option, value, accepted))
}

// WithPerHost derives a policy for each host, with a private breaker, budget, limiter, measurements and quota. Default
// true. False is for one dependency that answers under many names: all requests share the policy as it is given.
func WithPerHost(on bool) Option { return option(func(s *settings) { s.shared = !on }) }

// WithMaxHosts bounds how many hosts have a policy; default 1024, at least 1. A new host takes the place of one that was
// not asked for lately; hosts whose breaker is open or whose limiter has requests in flight are spared.
func WithMaxHosts(n int) Option { return option(func(s *settings) { s.maxHosts = n }) }

// WithRetryUnsafeMethods repeats POST, PATCH and unknown methods too. It is right only where every such request to the
// dependency may be carried out more than once.
func WithRetryUnsafeMethods() Option { return option(func(s *settings) { s.retriesUnsafe = true }) }

// WithMaxBodyBuffer says up to which size, in bytes, the body of a repeatable request is kept for another attempt if the
// request has no GetBody; default 1 MiB. With a larger body, and with 0 for any, the request is sent once.
func WithMaxBodyBuffer(bytes int64) Option { return option(func(s *settings) { s.bodyLimit = bytes }) }

// WithBufferedResponses reads the whole response body inside of the attempt, so that a body that stalls or breaks is
// retried like any other failure. The attempt timeout bounds the gap between two reads, whatever WithProgressBound says. It
// is for answers that fit into memory: nothing else bounds their size.
func WithBufferedResponses() Option { return option(func(s *settings) { s.buffers = true }) }

// WithResumedDownloads goes on with a GET whose body stalls or breaks where it stopped, at most 5 times and within the
// deadline of the call, if the request may be repeated. It needs a 200 response with a strong validator, that is an ETag
// which is not weak or, with no ETag at all, a Last-Modified at least a second before its Date, that the base transport did
// not decompress: a request that accepts identity encoding only is safe.
func WithResumedDownloads() Option { return option(func(s *settings) { s.resumes = true }) }

// WithDeadlineHeader sends with each attempt how many milliseconds it has left, in a header of that name; "" is
// X-Deadline-Ms. Off by default.
func WithDeadlineHeader(name string) Option {
	return option(func(s *settings) { s.deadline = headerName(name, deadlineHeader) })
}

// WithCriticalityHeader sends the criticality of the request's context, in a header of that name; "" is X-Criticality. Off
// by default.
func WithCriticalityHeader(name string) Option {
	return option(func(s *settings) { s.criticality = headerName(name, criticalityHeader) })
}

// WithQuota refuses requests here while the server's published rate limit has no more left than its limit × reserve, until
// it resets. On by default with a reserve of 0.1; 0 uses a limit up to the last request.
func WithQuota(reserve float64) Option {
	return option(func(s *settings) { s.quota, s.reserve = true, reserve })
}

// WithoutQuota lets the server do all the refusing.
func WithoutQuota() Option { return option(func(s *settings) { s.quota, s.reserve = false, 0 }) }

func headerName(name, fallback string) string {
	if name == "" {
		return fallback
	}
	return textproto.CanonicalMIMEHeaderKey(name)
}

// isToken reports whether name may be the name of a header.
func isToken(name string) bool {
	const others = "!#$%&'*+-.^_`|~"
	for _, r := range name {
		alphanumeric := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !alphanumeric && !strings.ContainsRune(others, r) {
			return false
		}
	}
	return name != ""
}
