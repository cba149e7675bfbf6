// Package propose holds the strategies that name a member for a region without owners.
//
// It owns nothing: a strategy is a function of what it is asked. It promises that the
// same question gets the same answer on every machine, whoever asks. A strategy only
// proposes: whoever asks decides whether that member may take the region, and takes the
// coldest one where not.
//
// It leaves to others: what is asked of somebody else, such as a hook; that is asked
// beforehand, with a timeout, and its answers are a Fixed.
package propose
