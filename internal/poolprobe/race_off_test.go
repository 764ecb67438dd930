//go:build !race

package poolprobe

const raceEnabled = false
