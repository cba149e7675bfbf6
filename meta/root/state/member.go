package state

// ownedCount is how many regions a member owns. Immutable.
type ownedCount struct {
	total int
	by    []keyspaceCount
}

// keyspaceCount is the part of one keyspace, ordered by keyspace.
type keyspaceCount struct {
	keyspace KeyspaceID
	regions  int
}
