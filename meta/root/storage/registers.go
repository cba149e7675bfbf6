package storage

// Registers are a few small named values, changed together. There is one
// writer process; methods may be called by many goroutines.
type Registers interface {
	// Get returns a copy of a value, nil when it was never put.
	Get(key string) ([]byte, error)
	// Put changes values, all or none, and returns when that is durable.
	// After an error it is unknown whether they changed.
	Put(values map[string][]byte) error
	// Close ends the use of the file.
	Close() error
}
