package rpcstats

import (
	"math/bits"
	"sync/atomic"
	"time"
)

const (
	// subBits is how finely a power of two is cut: 8 parts, so that a reported
	// quantile is at most 12.5% above the true one.
	subBits  = 3
	subCount = 1 << subBits
	// minShift is the power of two in nanoseconds below which all durations share
	// the first buckets: 1,024 ns.
	minShift = 10
	// maxShift is the power of two in nanoseconds above which all durations
	// share the last bucket: 2^37 ns, about 137 s.
	maxShift   = 37
	numBuckets = (maxShift-minShift)*subCount + 1
)

// Histogram counts durations in logarithmic buckets between 1 microsecond and
// two minutes. The zero value is ready; every method may be called at any time
// from any goroutine, and Observe allocates nothing and takes no lock.
type Histogram struct {
	buckets [numBuckets]atomic.Uint64
	sum     atomic.Int64
	max     atomic.Int64
}

// Observe counts one duration; a negative one counts as zero.
func (h *Histogram) Observe(d time.Duration) { h.observe(d, 1) }

// observe counts the same duration n times.
func (h *Histogram) observe(d time.Duration, n int) {
	if d < 0 {
		d = 0
	}
	h.buckets[bucketOf(d)].Add(uint64(n))
	h.sum.Add(int64(d) * int64(n))
	for {
		seen := h.max.Load()
		if int64(d) <= seen || h.max.CompareAndSwap(seen, int64(d)) {
			return
		}
	}
}

// Merge adds what other has observed, which must be at rest.
func (h *Histogram) Merge(other *Histogram) {
	for i := range other.buckets {
		if n := other.buckets[i].Load(); n != 0 {
			h.buckets[i].Add(n)
		}
	}
	h.sum.Add(other.sum.Load())
	for longest := other.max.Load(); ; {
		seen := h.max.Load()
		if longest <= seen || h.max.CompareAndSwap(seen, longest) {
			return
		}
	}
}

// Latency is a summary of a Histogram. Quantiles are upper bounds of the
// bucket they fall in, in microseconds.
type Latency struct {
	// Count is the number of durations observed.
	Count uint64 `json:"count"`
	// MeanUs is the arithmetic mean in microseconds.
	MeanUs float64 `json:"mean_us"`
	// P50Us is the median in microseconds.
	P50Us float64 `json:"p50_us"`
	// P99Us is the 99th percentile in microseconds.
	P99Us float64 `json:"p99_us"`
	// P999Us is the 99.9th percentile in microseconds.
	P999Us float64 `json:"p999_us"`
	// MaxUs is the longest duration in microseconds.
	MaxUs float64 `json:"max_us"`
}

// Summary returns the quantiles of everything observed so far. What is
// observed meanwhile may or may not be counted.
func (h *Histogram) Summary() Latency {
	var counts [numBuckets]uint64
	var total uint64
	for i := range counts {
		counts[i] = h.buckets[i].Load()
		total += counts[i]
	}
	if total == 0 {
		return Latency{}
	}
	longest := time.Duration(h.max.Load())
	return Latency{
		Count:  total,
		MeanUs: float64(h.sum.Load()) / float64(total) / 1e3,
		P50Us:  micros(quantile(&counts, total, 500, longest)),
		P99Us:  micros(quantile(&counts, total, 990, longest)),
		P999Us: micros(quantile(&counts, total, 999, longest)),
		MaxUs:  micros(longest),
	}
}

// quantile finds the duration that permille of 1,000 observations do not exceed.
func quantile(counts *[numBuckets]uint64, total, permille uint64, longest time.Duration) time.Duration {
	rank := (total*permille + 999) / 1000
	var seen uint64
	for i, n := range counts {
		seen += n
		if seen >= rank {
			return min(upperBound(i), longest)
		}
	}
	return longest
}

func bucketOf(d time.Duration) int {
	n := uint64(d)
	if n < 1<<minShift {
		return 0
	}
	shift := bits.Len64(n) - 1
	if shift >= maxShift {
		return numBuckets - 1
	}
	sub := int(n>>(shift-subBits)) & (subCount - 1)
	return (shift-minShift)*subCount + sub
}

// upperBound is the first duration above bucket i.
func upperBound(i int) time.Duration {
	if i == numBuckets-1 {
		return 1<<63 - 1
	}
	shift, sub := i/subCount+minShift, i%subCount
	return time.Duration(uint64(subCount+sub+1) << (shift - subBits))
}

func micros(d time.Duration) float64 { return float64(d) / 1e3 }
