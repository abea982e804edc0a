package change

// OccupySlot takes the only slot of s until release is closed.
func OccupySlot(s *Secrets, release <-chan struct{}) {
	s.once.Do(func() { s.slots = make(chan struct{}, max(s.Concurrency, 1)) })
	s.slots <- struct{}{}
	go func() {
		<-release
		<-s.slots
	}()
}
