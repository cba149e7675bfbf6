package load

import (
	"cmp"
	"math/bits"
	"time"
)

// Amount is a load in millionths of the members' unit.
type Amount int64

// Amounts. A load that is read is at most Most, a sum at most the whole.
const (
	One   Amount = 1_000_000
	Most  Amount = 1 << 50
	whole Amount = 1 << 61
)

// Read takes a load that was reported; what is no load is refused.
func Read(x float64) (Amount, bool) {
	if !(x >= 0 && x <= 1e300) {
		return 0, false
	}
	return Amount(min(x*float64(One), float64(Most))), true
}

// Plus adds, up to the largest sum there is.
func (a Amount) Plus(b Amount) Amount { return min(a+b, whole) }

// Share is a*num/den, up to the largest sum there is. A negative amount counts as 0.
func (a Amount) Share(num, den uint64) Amount {
	hi, lo := bits.Mul64(uint64(max(a, 0)), num)
	if hi >= den {
		return whole
	}
	q, _ := bits.Div64(hi, lo, den)
	return Amount(min(q, uint64(whole)))
}

// Pair is a load by two averages: Low counts where something is to leave, High where
// something is to arrive. So a spike moves nothing, and a lull attracts nothing.
type Pair struct{ Low, High Amount }

// Same is a load that is known exactly.
func Same(a Amount) Pair { return Pair{a, a} }

// Plus adds both.
func (p Pair) Plus(o Pair) Pair { return Pair{p.Low.Plus(o.Low), p.High.Plus(o.High)} }

// Minus takes away both, down to 0.
func (p Pair) Minus(o Pair) Pair { return Pair{max(p.Low-o.Low, 0), max(p.High-o.High, 0)} }

// Share is num/den of both.
func (p Pair) Share(num, den uint64) Pair { return Pair{p.Low.Share(num, den), p.High.Share(num, den)} }

// Half-lives of the two averages.
const (
	fastHalf = 10 * time.Second
	slowHalf = 60 * time.Second
)

// average follows a value that is the same until it is set anew.
type average struct{ fast, slow Amount }

// after is the average when the value has been so for a time.
func (a average) after(value Amount, d time.Duration) average {
	if a.fast == value && a.slow == value || d <= 0 {
		return a
	}
	return average{toward(a.fast, value, left(d, fastHalf)), toward(a.slow, value, left(d, slowHalf))}
}

// toward is value plus what is left of the way from it, of 1<<32.
func toward(from, value Amount, left uint64) Amount {
	if from < value {
		return value - (value-from).Share(left, 1<<32)
	}
	return value + (from-value).Share(left, 1<<32)
}

// left is what is left of 1<<32 after d.
func left(d, half time.Duration) uint64 {
	n := d / half
	if n >= 32 {
		return 0
	}
	x := uint64(1<<32) >> n
	part := uint64(Amount(d%half).Share(1<<32, uint64(half)))
	for i, factor := range halvings {
		if part&(1<<(31-i)) != 0 {
			x = x * factor >> 32
		}
	}
	const ln2 = 45_426 // of 1<<16: what is left of the way is as good as straight
	return x - (x>>16)*(part&0xffff*ln2>>16)>>16
}

// halvings are what is left of 1<<32 after 1/2, 1/4, 1/8 ... of a half-life.
var halvings = [16]uint64{
	3037000500, 3611622603, 3938502376, 4112874773, 4202935003, 4248701965, 4271771996, 4283353945,
	4289156690, 4292061010, 4293513907, 4294240540, 4294603903, 4294785595, 4294876445, 4294921870,
}

// Less compares loads of members by what they can take: a/of < b/than.
func Less(a Amount, of uint64, b Amount, than uint64) bool { return Compare(a, of, b, than) < 0 }

// Compare compares a/of with b/than. Negative amounts count as 0.
func Compare(a Amount, of uint64, b Amount, than uint64) int {
	ah, al := bits.Mul64(uint64(max(a, 0)), than)
	bh, bl := bits.Mul64(uint64(max(b, 0)), of)
	return cmp.Or(cmp.Compare(ah, bh), cmp.Compare(al, bl))
}
