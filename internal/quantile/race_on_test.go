//go:build race

package quantile

const raceEnabled = true
