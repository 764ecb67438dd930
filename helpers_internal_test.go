package resilience

// RaceEnabled is raceEnabled for the tests in package resilience_test.
const RaceEnabled = raceEnabled
