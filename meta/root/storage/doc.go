// Package storage keeps one root peer's workdir: the log, the checkpoint, and
// who the peer is. It knows raft's entries and hard state and nothing of what
// they mean.
//
// # Files
//
//	root.raft.bin            registers (bbolt): identity, starts, durable mark, checkpoint
//	                         register, what is remembered of other peers
//	root.events.wal/N.wal    segments of the log, of fixed size, numbered from 1
//	root.events.wal/N.spare  segments being made, or spent and kept for use again
//	root.checkpoint.binpb    the current checkpoint; .tmp and .incoming are unfinished ones
//
// The log is a sequence of frames, numbered from 1 for the life of the
// workdir. A frame is one Append: hard state if it changed, and entries; it
// starts at a sector and never crosses a segment (frame.go). Its header can be
// recognised by itself, by the segment's random salt and two checksums; a
// third checksum chains it to the frame before. The first frame of a segment
// repeats the hard state and says which entry and which frame came before it,
// so that older segments are not needed. Later entries replace earlier ones of
// their index and above. A segment has a checked header before it has its name
// (segment.go), is zero-filled or recycled, and is made ahead of use by Run. A
// batch that is larger than a segment gets a larger segment of its own.
//
// A checkpoint is a checked header, chained chunks of records and a footer
// that names the whole (checkpoint_format.go).
//
// The durable mark says how far the log is known to be on the disk. It is
// what tells a torn tail from lost acknowledged frames at the very end of the
// log. It lags by up to MarkInterval, and not at all after Close.
//
// # Promises
//
//  1. What Append(sync) acknowledged is found, with the same bytes, after any
//     crash, power cut included. What was under way is found whole or not at
//     all. Nothing else is found.
//  2. One Append is one write and one fdatasync. A commit index alone costs
//     neither.
//  3. Frames are written one after the other, each synced before the next.
//     Therefore only the last one can be in doubt, and a bad frame with a whole
//     later one behind it, or before the durable mark, is damage: refused with
//     file and offset. Any other bad frame at the end is a torn append, and is
//     cut off durably before anything is written.
//  4. The last frame, if the mark does not cover it, is written again at the
//     next start, behind itself: it may have been read from memory that a
//     power cut would still lose. It is never written over, because a cut in
//     that moment could spoil what was acknowledged.
//  5. A file that is missing, of another workdir, older than it was, or of a
//     newer format is refused by name; never taken for a fresh start. A workdir
//     is fresh only when root.raft.bin, log and checkpoint are all absent.
//  6. A single flipped bit is refused or makes no difference. Exception: a bit
//     of the last frame, in the time before the mark covers it, if the process
//     was killed then, looks like a torn append.
//  7. The current checkpoint is replaced only by one that is durable and whole.
//     InstallCheckpoint gives, after a crash at any step, the old checkpoint
//     and log, or the new checkpoint and a log that begins behind it.
//  8. Nothing is compacted beyond the current checkpoint.
//  9. The first write, sync, rename or registers commit that fails is the last:
//     every later call returns a *FailedError, nothing is retried, and nothing
//     more is acknowledged.
//     What can wait is no such write: a checkpoint, or a segment ahead of its use, that
//     finds no room (a full disk or quota) is dropped, what there is of it removed, and
//     tried again later by who asked for it. The log goes on in the room that it has, and
//     takes that of a checkpoint that is being written. Open copies nothing: what it
//     writes has its room, unless the last frame does not fit into the last segment.
//  10. One process uses a workdir; another gets a *LockedError. The lock is on the folder
//     itself. A folder that is moved or removed stops its process, within MarkInterval
//     of the next write and before anything is made under its name.
//  11. Everything but Append, InstallCheckpoint and Close may be called by any
//     goroutine. Readers and Compact never wait for the disk; Append waits for its
//     own write and sync, and for a segment when none was made ahead.
//
// # What a restart finds
//
// The model of a crash: of each file, every sector not yet synced is kept,
// lost or filled with garbage; of each directory, every change not yet synced
// is kept or lost; a sync that failed has forgotten what it should have
// written. A commit of the registers is all or nothing.
//
//	crash during                 a restart finds
//	making a workdir             no mark: it makes the log again, empty
//	Append: write, fdatasync     the frame whole (and repeats it), or a torn tail (and cuts it)
//	making a segment             a spare (removed), or a segment without frames
//	first frame of a segment     as Append; the segment before is complete
//	repeating the last frame     it once, or twice
//	cutting a torn tail          the tail still torn, never a new frame
//	WriteCheckpoint, before
//	  its rename is durable      the old checkpoint, or the new one; the unfinished file is removed
//	  its register is put        the new checkpoint, newer than registered: it is registered now
//	ReceiveCheckpoint            the old checkpoint; the incoming file is removed
//	InstallCheckpoint, before
//	  its rename is durable      the old checkpoint and log
//	  the log's reset is durable the new checkpoint and a log without its entry: the log is reset now
//	  older segments are gone    the new checkpoint, the reset log; older segments are retired later
//	retiring, after the mark     segments below the mark's first: removed
//	Close                        as before Close, or a clean mark
//
// # Left to others
//
// What records and entries say, and whether the state hash of a checkpoint is
// right: meta/root/state and replica. When to checkpoint and compact: replica.
// Whether an empty workdir may join: bootstrap. A workdir put back as a whole
// from an older copy cannot be told here: other peers tell it, by the starts that are
// counted here and by what they remember of one another (freshness).
package storage
