package main

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// durations are how many seconds the tests of packages took the last time, by import path. They
// order the packages, and tell how much is left.
type durations map[string]float64

// bytesPerSecond of test code stand for a second where nothing else is known.
const bytesPerSecond = 15_000

// readDurations never fails: without them the order is another one.
func readDurations(folder string) durations {
	d := make(durations)
	if raw, err := os.ReadFile(filepath.Join(folder, "durations.json")); err == nil && json.Unmarshal(raw, &d) != nil {
		d = make(durations)
	}
	return d
}

// weight is about how many seconds the tests of a package take, whose code has so many bytes.
func (d durations) weight(path string, size int) float64 {
	if seconds, ok := d[path]; ok {
		return seconds
	}
	return float64(size) / bytesPerSecond
}

// add takes what was measured, without load beside it, and keeps it.
func (d durations) add(r *result, folder string) error {
	for path, seconds := range r.seconds {
		d[path] = seconds
	}
	raw, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "durations.json"), raw, 0o644)
}
