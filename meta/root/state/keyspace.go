package state

import rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"

// keyspace is a record with what is counted for it. Immutable.
type keyspace struct {
	record *rootv1.Keyspace
	// regions counts its regions; owned those that have an owner.
	regions, owned int
}

// counters hand out numbers inside Apply.
type counters struct {
	keyspace          uint32
	memberIncarnation uint64
}
