package balance

// heap orders seats; first says which of two comes before the other. Where a seat is in
// it is noted in at, -1 if nowhere.
type heap struct {
	items []int32
	at    []int32
	first func(a, b int32) bool
}

func newHeap(at []int32, first func(a, b int32) bool) *heap { return &heap{at: at, first: first} }

func (h *heap) top() int32 {
	if len(h.items) == 0 {
		return -1
	}
	return h.items[0]
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
	for i > 0 && h.first(h.items[i], h.items[(i-1)/2]) {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (h *heap) down(i int) {
	for {
		best := i
		for k := 2*i + 1; k <= 2*i+2 && k < len(h.items); k++ {
			if h.first(h.items[k], h.items[best]) {
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
