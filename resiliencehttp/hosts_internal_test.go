package resiliencehttp

import (
	"fmt"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/measuredgo/resilience"
)

func TestHostsGoWithTheirPolicies(t *testing.T) {
	h, err := newHosts(resilience.MustNew(), &settings{maxHosts: 4})
	require.NoError(t, err)
	for round := range 3 {
		for i := range 100 {
			u := &url.URL{Scheme: "http", Host: fmt.Sprintf("h%d", i)}
			first := h.of(u)
			require.Same(t, first, h.of(u), "round %d", round)
			require.Equal(t, h.scope.For(keyOf(u)), first.policy)
			require.LessOrEqual(t, len(h.known), 4+h.slack)
		}
	}
}
