//go:build race

package trip_test

// raceEnabled tells tests to simulate less.
const raceEnabled = true
