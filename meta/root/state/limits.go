package state

import "github.com/nokv/nokv/rooted"

// Limits of requests and records. They are part of the state machine: two
// replicas with different limits would judge an entry differently.
const (
	// MaxKeyBytes bounds a route key, in bytes.
	MaxKeyBytes = rooted.MaxKeyBytes
	// MaxFrontierBytes bounds a region's frontier, in bytes.
	MaxFrontierBytes = 4096
	// MaxCommandBytes bounds an encoded command, in bytes.
	MaxCommandBytes = 1 << 20
	// MaxEventsPerCommand bounds the events of one command, and the
	// assignments of one event.
	MaxEventsPerCommand = 4096
	// MaxRequiredKeyspaces bounds the keyspaces whose versions a command requires.
	MaxRequiredKeyspaces = 1024
	// MaxOwners bounds the owners of one region.
	MaxOwners = 16
	// MaxSlots bounds the slots of a keyspace.
	MaxSlots = 16384
	// MaxNameBytes bounds names of keyspaces, in bytes.
	MaxNameBytes = rooted.MaxNameBytes
	// MaxIDBytes bounds ids of members and coordinators, in bytes.
	MaxIDBytes = 255
	// MaxAddressBytes bounds addresses and URLs, in bytes.
	MaxAddressBytes = 512
	// MaxTextBytes bounds reasons, signals and kinds, in bytes.
	MaxTextBytes = 1024
	// MaxSignals bounds the signals of a verdict.
	MaxSignals = 32
	// MaxCapacity bounds the part of the load that a member may take, relative to others.
	MaxCapacity = rooted.MaxCapacity
	// MaxLabels bounds the labels of a record.
	MaxLabels = 64
	// MaxLabelBytes bounds a label's name and its value, in bytes.
	MaxLabelBytes = 255
	// MaxLabelRules bounds the label rules of a keyspace.
	MaxLabelRules = 256
	// MaxMemberKeyspaces bounds the keyspaces that a member names.
	MaxMemberKeyspaces = 64
	// MaxMovesInFlight bounds the moves that may be under way from a member, or to one.
	MaxMovesInFlight = 4096
	// MaxFlapFailures bounds how many failures a guard waits for: as many are remembered of a member.
	MaxFlapFailures = 1000
	// MaxRingVnodes bounds the virtual nodes of a member.
	MaxRingVnodes = 4096
	// MaxMillis bounds every duration in settings, in milliseconds (366 days).
	MaxMillis = 366 * 24 * 60 * 60 * 1000
	// MaxTenureTTLMillis bounds a Tenure's ttl, in milliseconds (one hour), whatever
	// the cluster allows.
	MaxTenureTTLMillis = 60 * 60 * 1000
	// A cluster's own bound of a Tenure's ttl, in milliseconds: where nobody set it,
	// and what may be set.
	DefaultMaxTenureTTLMillis = 30_000
	LeastMaxTenureTTLMillis   = 100
	MostMaxTenureTTLMillis    = 300_000
	// RetireSecretBytes is the size of what retires an era, in bytes.
	RetireSecretBytes = 32
	// KeySecretBytes is the size of a key that the root keeps, SealedSecretBytes that
	// of a sealed one, in bytes.
	KeySecretBytes    = 32
	SealedSecretBytes = 1 + 12 + KeySecretBytes + 16

	// MaxActorBytes and MaxWhyBytes bound who asked for a command, or for whom, and why, in bytes.
	MaxActorBytes = MaxPrincipalNameBytes + 16
	MaxWhyBytes   = 256
	// MaxPrincipalNameBytes bounds the name of a principal, in bytes.
	MaxPrincipalNameBytes = 128
	// MaxGrants bounds the grants of a cluster, MaxGrantsPerKeyspace those of one
	// keyspace or prefix.
	MaxGrants            = 4096
	MaxGrantsPerKeyspace = 64

	// MaxRootPeers bounds the peers of the metadata root.
	MaxRootPeers = 5
	// MaxCoordinators bounds the coordinators of a cluster.
	MaxCoordinators = 1024
	// MaxHoldMillis bounds for how long regions are kept for their owner's next process: a
	// day, in milliseconds.
	MaxHoldMillis = 24 * 60 * 60 * 1000
	// MaxMembers bounds the members that are not removed.
	MaxMembers = 1 << 17
	// MaxRemovedMembers bounds the removed members that are remembered; the
	// one removed longest ago is forgotten first.
	MaxRemovedMembers = 1024
	// MaxKeyspaces bounds the keyspaces of a cluster.
	MaxKeyspaces = 1 << 16
	// MaxRegions bounds the regions of a cluster.
	MaxRegions = 1 << 24
	// MaxEndedTransitions bounds the ended transitions that are remembered;
	// the one that ended longest ago is forgotten first.
	MaxEndedTransitions = 256
	// MaxRememberedCommands bounds the commands with an identity that are
	// remembered; the oldest are forgotten 4,096 at a time.
	MaxRememberedCommands = 1 << 18
	// MaxRemovedRegions bounds the removed regions that are remembered; the one
	// removed longest ago is forgotten first.
	MaxRemovedRegions = 1 << 16
	// MaxReplacedPeers bounds the root peers that were ever replaced.
	MaxReplacedPeers = 4096
	// MaxHandovers bounds the handovers that are remembered, newest last.
	MaxHandovers = 32
	// MaxPinKeys bounds the keys that are kept, of pins and of bearer tokens: the
	// newest seals or signs, all open or verify.
	MaxPinKeys = 2
	// MaxRevokedCertificates bounds the certificates that are revoked, by name or serial number.
	MaxRevokedCertificates = 1024
	// MaxRevokedTokens bounds the bearer tokens that are revoked by their ids.
	MaxRevokedTokens = 1024

	// MaxDeletedKeyspaces bounds the names of deleted keyspaces that are remembered; the one that was
	// deleted longest ago is forgotten when there is one more.
	MaxDeletedKeyspaces = 1024

	// MaxEpoch is the highest version, and conf version, that a region is
	// published with; there is room for the root to go on from it.
	MaxEpoch = 1 << 62
	// MaxID is the highest id: ids fit a signed 64-bit integer.
	MaxID = 1<<63 - 1
	// MaxIDWindow bounds the ids of one window, and MaxIDSkip how far ahead of the
	// fence it begins; the first window that a cluster gives
	// may begin anywhere.
	MaxIDWindow = 1 << 32
	MaxIDSkip   = 1 << 40
	// MaxTSO is the highest timestamp: timestamps fit a signed 64-bit integer
	// until the year 3084.
	MaxTSO = 1<<63 - 1
	// TSOLogicalBits is the number of counter bits of a timestamp; the bits
	// above are Unix milliseconds.
	TSOLogicalBits = 18
)
