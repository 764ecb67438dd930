//go:build race

package poolprobe

const raceEnabled = true
