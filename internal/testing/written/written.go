// Package written holds the text that loggers and processes write while a test reads it.
package written

import (
	"bytes"
	"sync"

	"github.com/hashicorp/go-hclog"
)

// Text is a buffer that any number of goroutines write to and read at once. The zero value
// is empty.
type Text struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

// Write adds to the text. It returns no error.
func (t *Text) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.Write(p)
}

// String returns what was written since the last Take.
func (t *Text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}

// Take returns what was written since the last Take, and forgets it.
func (t *Text) Take() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.buf.Reset()
	return t.buf.String()
}

// Logger returns a logger that writes here what is of a level or above.
func (t *Text) Logger(level hclog.Level) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Output: t, Level: level})
}
