// Package load keeps what members say of their load and of that of their regions.
//
// It owns two averages a region, and what is booked: a region that changed its owner is
// counted where it is now before anybody reports it from there. It promises:
//
//  1. What is no number, infinite or negative is refused and counted; the old value stays.
//  2. The history of a region goes with it to its next owner, in shares to the parts of a
//     split, as a sum to what is merged.
//  3. A region is booked onto its new owner, and off the old one, from the change on until
//     the new owner's report of that epoch: nothing is counted twice, or by nobody.
//  4. The same reports in the same order give the same numbers on every machine: nothing
//     here is a floating-point number but what is read.
//  5. A region takes 160 bytes at most while one member owns it, and 32 for each one more;
//     more regions than there is room for are refused: their load is not known.
//
// It leaves to others: what to make of loads (package balance), clocks, and who may report.
package load
