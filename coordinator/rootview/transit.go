package rootview

import (
	"time"

	"github.com/nokv/nokv/internal/clock"
)

// transitWindow is how long the fastest message counts: two machines' clocks
// drift apart by some 50 parts in a million, so by milliseconds in it.
const transitWindow = 30 * time.Second

// transit tells when the messages of one stream were sent, by this process's
// clock: as long before they came as they took longer than the fastest of the
// recent past. What even that one took is not known.
type transit struct {
	begun bool
	// Least difference of coming and sending, in this window and the last.
	now, before clock.Instant
	until       clock.Instant
}

// sentAt is when a message was sent that came at now, micros after its stream
// began; 0: it does not say.
func (t *transit) sentAt(micros uint64, now clock.Instant) clock.Instant {
	if micros == 0 {
		return now
	}
	sent := clock.Instant(min(micros, 1<<50)) * clock.Instant(time.Microsecond)
	offset := now - sent
	switch {
	case !t.begun:
		*t = transit{begun: true, now: offset, before: offset, until: now.Add(transitWindow)}
	case now >= t.until:
		t.before, t.now, t.until = t.now, offset, now.Add(transitWindow)
	}
	t.now = min(t.now, offset)
	return sent + min(t.now, t.before)
}
