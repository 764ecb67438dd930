package main

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAnHourIsNotWaitedFor(t *testing.T) {
	mine, _ := rowsOf(longRetryAfter())
	p := mine[0].what.(pushedBack)
	require.NoError(t, p.err, "who waits meets the deadline")
	require.Equal(t, http.StatusServiceUnavailable, p.status)
}

func TestSupersededBodiesAreClosedAndConnectionsReused(t *testing.T) {
	mine, _ := rowsOf(supersededBodies())
	require.Equal(t, superseded{responses: 40, closed: 40, connections: 1, succeeded: 20}, mine[0].what)
}

func TestAPostIsSentOnce(t *testing.T) {
	mine, _ := rowsOf(posts())
	require.Equal(t, posted{1}, mine[0].what)
}
