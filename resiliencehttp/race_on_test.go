//go:build race

package resiliencehttp_test

const raceDetector = true
