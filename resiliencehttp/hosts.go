package resiliencehttp

import (
	"net/url"
	"strings"
	"sync"

	"github.com/measuredgo/resilience"
	"github.com/measuredgo/resilience/internal/inside"
)

// hostKey names what shares a policy: scheme and host in lower case, without the scheme's default port and without the dot
// that ends a fully qualified name.
type hostKey struct{ scheme, host string }

func (k hostKey) String() string { return k.scheme + "://" + k.host }

func keyOf(u *url.URL) hostKey {
	key := hostKey{strings.ToLower(u.Scheme), strings.ToLower(u.Host)}
	name, port := key.host, ""
	if i := strings.LastIndexByte(name, ':'); i >= 0 && !strings.HasSuffix(name, "]") {
		name, port = name[:i], name[i+1:]
	}
	name = strings.TrimSuffix(name, ".")
	if port == "" || port == "80" && key.scheme == "http" || port == "443" && key.scheme == "https" {
		key.host = name
	} else if len(name)+1+len(port) != len(key.host) {
		key.host = name + ":" + port
	}
	return key
}

// host is what the requests to one host have in common.
type host struct {
	policy resilience.Policy
	look   inside.Policy
	quota  quota
}

func newHost(p resilience.Policy) *host { return &host{policy: p, look: inside.Look(p)} }

// hosts finds the host of a URL. The scope says which policies there are; a host goes with its policy, and the ones whose
// policy has lost its place are swept out now and then.
type hosts struct {
	all   *host                      // for every URL; nil: one for each
	scope *resilience.Scope[hostKey] // nil: one policy for all
	slack int                        // how many hosts may be left over
	mu    sync.RWMutex               // guards known
	known map[hostKey]*host          // at most the scope's, and slack
}

func newHosts(p resilience.Policy, s *settings) (*hosts, error) {
	if s.shared {
		return &hosts{all: newHost(p)}, nil
	}
	scope, err := resilience.NewScope(p, resilience.ScopeConfig[hostKey]{
		Max: s.maxHosts, Name: func(k hostKey) string { return k.host },
	})
	if err != nil {
		return nil, err
	}
	return &hosts{scope: scope, slack: s.maxHosts/8 + 1, known: make(map[hostKey]*host)}, nil
}

func (h *hosts) of(u *url.URL) *host {
	if h.all != nil {
		return h.all
	}
	key := keyOf(u)
	p := h.scope.For(key)
	h.mu.RLock()
	found := h.known[key]
	h.mu.RUnlock()
	if found != nil && found.policy == p {
		return found
	}
	return h.remember(key, p)
}

func (h *hosts) remember(key hostKey, p resilience.Policy) *host {
	h.mu.Lock()
	defer h.mu.Unlock()
	if found := h.known[key]; found != nil && found.policy == p {
		return found
	}
	fresh := newHost(p)
	h.known[key] = fresh
	if len(h.known) > h.scope.Len()+h.slack {
		h.sweepLocked()
	}
	return fresh
}

// sweepLocked forgets the hosts that the scope has forgotten.
func (h *hosts) sweepLocked() {
	live := make(map[hostKey]bool, h.scope.Len())
	for key := range h.scope.All() {
		live[key] = true
	}
	for key := range h.known {
		if !live[key] {
			delete(h.known, key)
		}
	}
}
