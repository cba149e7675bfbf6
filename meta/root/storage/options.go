package storage

import (
	"cmp"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nokv/nokv/internal/disk"
)

const (
	// DefaultSegmentBytes is the size of a segment of the log.
	DefaultSegmentBytes = 16 << 20
	// MinSegmentBytes is the smallest size a segment may be set to.
	MinSegmentBytes = 4 << 10
	// MaxSegmentBytes is the largest size a segment may be set to.
	MaxSegmentBytes = 1 << 30
	// DefaultMarkInterval is the time between updates of the durable mark.
	DefaultMarkInterval = 100 * time.Millisecond
	// DefaultRecycle is the number of spent segments kept for use again.
	DefaultRecycle = 4
)

// Options say how a workdir is opened. The zero value is right for production.
type Options struct {
	// FS is the file system. Default: disk.OS().
	FS disk.FS
	// OpenRegisters opens root.raft.bin and makes it when missing. Default:
	// OpenBolt. Simulations take the fake disk's.
	OpenRegisters func(path string) (Registers, error)
	// ReadRegisters reads all of root.raft.bin and changes nothing; Verify
	// uses it. Default: ReadBolt.
	ReadRegisters func(path string) (map[string][]byte, error)
	// SegmentBytes is the size of new segments. Segments that exist keep
	// theirs. Default: DefaultSegmentBytes.
	SegmentBytes int64
	// MarkInterval is how often Run updates the durable mark when the log has
	// grown. Default: DefaultMarkInterval.
	MarkInterval time.Duration
	// Recycle is how many spent segments are kept for use again; negative:
	// none. Default: DefaultRecycle.
	Recycle int
	// CheckRecords judges packed records of a checkpoint that is received or
	// verified, before anybody counts on them: see ReadCheckpoint. Nil: sums and
	// framing are enough.
	CheckRecords func(packed []byte) error
	// Logger gets lifecycle and repairs. Default: none.
	Logger hclog.Logger
}

// checkRecords is CheckRecords, whose error is a *badCheckpoint.
func (o *Options) checkRecords(packed []byte) error {
	if o.CheckRecords == nil {
		return nil
	}
	if err := o.CheckRecords(packed); err != nil {
		return &badCheckpoint{what: "records are not valid: " + err.Error()}
	}
	return nil
}

func (o Options) withDefaults() (Options, error) {
	o.FS = cmp.Or(o.FS, disk.OS())
	if o.OpenRegisters == nil {
		o.OpenRegisters = OpenBolt
	}
	if o.ReadRegisters == nil {
		o.ReadRegisters = ReadBolt
	}
	o.SegmentBytes = cmp.Or(o.SegmentBytes, DefaultSegmentBytes)
	o.MarkInterval = cmp.Or(o.MarkInterval, DefaultMarkInterval)
	o.Recycle = cmp.Or(o.Recycle, DefaultRecycle)
	o.Logger = cmp.Or(o.Logger, hclog.NewNullLogger())
	return o, o.Validate()
}

// Validate says what is wrong with the options.
func (o Options) Validate() error {
	if o.SegmentBytes != 0 && (o.SegmentBytes < MinSegmentBytes || o.SegmentBytes > MaxSegmentBytes || o.SegmentBytes%sectorBytes != 0) {
		return fmt.Errorf("segment size %d: must be a multiple of %d from %d to %d", o.SegmentBytes, sectorBytes, MinSegmentBytes, MaxSegmentBytes)
	}
	if o.MarkInterval < 0 {
		return fmt.Errorf("mark interval %v: must not be negative", o.MarkInterval)
	}
	return nil
}
