package balance

// heap orders seats, or sets of them; before says which of two comes before the other. Where
// one is in it is noted in at, -1 if nowhere.
type heap struct {
	items  []int32
	at     []int32
	before func(a, b int32) bool
}

func newHeap(at []int32, before func(a, b int32) bool) *heap { return &heap{at: at, before: before} }

func (h *heap) top() int32 {
	if len(h.items) == 0 {
		return -1
	}
	return h.items[0]
}

// first is the first seat that is not skipped; -1: there is none.
func (h *heap) first(skip func(int32) bool) int32 {
	var buffer [8]int32
	passed, x := buffer[:0], h.top()
	for ; x >= 0 && skip(x); x = h.top() {
		passed = append(passed, x)
		h.remove(x)
	}
	for _, p := range passed {
		h.push(p)
	}
	return x
}

func (h *heap) push(x int32) {
	if h.at[x] >= 0 {
		return
	}
	h.at[x] = int32(len(h.items))
	h.items = append(h.items, x)
	h.up(len(h.items) - 1)
}

func (h *heap) remove(x int32) {
	i := h.at[x]
	if i < 0 {
		return
	}
	last := len(h.items) - 1
	h.swap(int(i), last)
	h.items = h.items[:last]
	h.at[x] = -1
	if int(i) < last {
		h.fix(h.items[i])
	}
}

// fix finds the place of a seat that changed, if it is in the heap.
func (h *heap) fix(x int32) {
	if i := h.at[x]; i >= 0 {
		h.up(int(i))
		h.down(int(h.at[x]))
	}
}

func (h *heap) up(i int) {
	for i > 0 && h.before(h.items[i], h.items[(i-1)/2]) {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (h *heap) down(i int) {
	for {
		best := i
		for k := 2*i + 1; k <= 2*i+2 && k < len(h.items); k++ {
			if h.before(h.items[k], h.items[best]) {
				best = k
			}
		}
		if best == i {
			return
		}
		h.swap(i, best)
		i = best
	}
}

func (h *heap) swap(i, j int) {
	h.items[i], h.items[j] = h.items[j], h.items[i]
	h.at[h.items[i]], h.at[h.items[j]] = int32(i), int32(j)
}
