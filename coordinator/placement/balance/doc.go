// Package balance evens out what the members of a keyspace have.
//
// It owns the objective of a plan: Make looks at all regions of one keyspace and says
// which of them go elsewhere, are cut, joined, or get one owner more or less. Field is
// the order of its members by what they have, for whoever has a region to give. It
// promises:
//
//  1. The same input gives the same bytes, in whatever order its lists are.
//  2. Nothing goes to a member that may not take it: it is not heard, drains, is full, its
//     labels or its zone are wrong, it owns the region already, or its load is not known.
//  3. A move lowers the higher one of the two loads by a gap, or it is not made; what need not
//     move keeps within the Budget, which is handed in and comes back.
//  4. What is under way is counted where it is going to be. A region that is under way, or
//     rests, or is quarantined, is left alone.
//  5. Work is that of the regions and members together, and of a logarithm for each step.
//     Steps are bounded by number.
//
// It leaves to others: regions that nobody owns and members that drain (package
// placement), loads (package load), and what becomes of a step.
package balance
