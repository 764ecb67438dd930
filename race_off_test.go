//go:build !race

package resilience

// raceEnabled tells tests that count allocations that the race detector adds its own.
const raceEnabled = false
