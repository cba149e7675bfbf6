package storage

// Identity is who a workdir belongs to.
type Identity struct {
	// ClusterID is the cluster's random identity; 0 before bootstrap.
	ClusterID uint64
	// NodeID is the peer's id, 1 or greater.
	NodeID uint64
	// Incarnation is the random identity of this workdir.
	Incarnation uint64
	// Peers are the root peers that founded the cluster, this one included; who they
	// are by now the log says. With Joined they are those of the time it joined.
	Peers []Peer
	// Member says that the workdir belongs to a cluster; false: still pending.
	Member bool
	// Joined says that the peer was not there when the cluster began, and learns
	// from the log who votes.
	Joined bool `json:",omitempty"`
	// Former are the clusters that this one was restored from, the newest last.
	Former []uint64 `json:",omitempty"`
}

// Peer is a root peer as this workdir knows it.
type Peer struct {
	NodeID uint64
	// Incarnation is the random identity of the peer's workdir; 0: not known yet.
	Incarnation uint64
	// Address of the peer's raft transport, host:port.
	Address string
}

// CheckpointMeta describes a checkpoint.
type CheckpointMeta struct {
	ClusterID, ClusterIncarnation uint64
	// Index and Term are those of the last entry in the checkpoint.
	Index, Term uint64
	// StateHash is the hash of the state at Index.
	StateHash uint64
	// Records is the number of records; filled in by the writer.
	Records uint64
	// Bytes is the size of the file; filled in by the writer.
	Bytes uint64
}

// Report is what Verify found.
type Report struct {
	// Identity is the workdir's; HasIdentity is false when none was saved.
	Identity    Identity
	HasIdentity bool
	// InUse says that another process had the workdir open: what looks like
	// damage may be work in progress.
	InUse bool
	// Segments is the number of segment files that hold frames; Frames and
	// Entries count what is in them.
	Segments, Frames, Entries int
	// FirstIndex and LastIndex are the entries [FirstIndex, LastIndex] that a
	// start would find; LastIndex below FirstIndex: none.
	FirstIndex, LastIndex uint64
	// Checkpoint is the current one; HasCheckpoint is false when there is none.
	Checkpoint    CheckpointMeta
	HasCheckpoint bool
	// Torn says that an append was cut short by a crash behind the last
	// acknowledged one; a start cuts it off. Not damage.
	Torn bool
	// Damage is everything found wrong, in the order of the files.
	Damage []Damage
}

// Damage is one thing found wrong, as in DamageError.
type Damage struct {
	File   string
	Offset int64
	What   string
	Do     string
}
