// Package spread measures how evenly strategies place regions.
//
// It owns nothing that runs: members and regions are numbers, and time is what it says.
// It promises that the same Config gives the same Report on every machine.
package spread
