package oracle

// aggregates are those of one source. They do not depend on the order of records.
type aggregates struct {
	instances   map[string]*instance
	elements    map[inInstance]*element
	jobs        map[inInstance]*job
	incidents   map[inInstance]*incident
	variables   map[inInstance]*variable
	tasks       map[inInstance]*userTask
	waits       map[wait]*waiting
	signals     map[wait]*signal
	decisions   map[inInstance]*decision
	definitions map[int64]*definition
	partitions  map[int64]*partition
}

// inInstance is the key of an entity of a process instance.
type inInstance struct {
	instance string
	key      int64
}

// wait is the key of an entity of one of several value types.
type wait struct {
	valueType string
	inInstance
}

func newAggregates() *aggregates {
	return &aggregates{
		instances: map[string]*instance{}, elements: map[inInstance]*element{}, jobs: map[inInstance]*job{}, incidents: map[inInstance]*incident{},
		variables: map[inInstance]*variable{}, tasks: map[inInstance]*userTask{}, waits: map[wait]*waiting{}, signals: map[wait]*signal{},
		decisions: map[inInstance]*decision{}, definitions: map[int64]*definition{}, partitions: map[int64]*partition{},
	}
}

// at returns the value of a key, and creates a missing one.
func at[K comparable, V any](all map[K]*V, key K) *V {
	v := all[key]
	if v == nil {
		v = new(V)
		all[key] = v
	}
	return v
}

// greatest keeps the greater text. Some records of an entity lack it; the others agree,
// unless the entity was migrated.
func greatest(s *string, o text) {
	if string(o) > *s {
		*s = string(o)
	}
}

func (f *aggregates) take(r *record, businessKey string) {
	f.takePartition(r)
	if r.RecordType != "EVENT" {
		return
	}
	of := inInstance{string(r.Value.ProcessInstanceKey), r.Key.n}
	switch r.ValueType {
	case "PROCESS_INSTANCE", "JOB", "INCIDENT", "PROCESS_INSTANCE_CREATION":
		if aboutInstance(of.instance) {
			at(f.instances, of.instance).take(r)
		}
	}
	if aboutInstance(of.instance) && businessKey != "" && string(r.Value.Name) == businessKey && whole(r.Value.ScopeKey.n) == of.instance && r.is("VARIABLE", "CREATED", "UPDATED") {
		at(f.instances, of.instance).takeBusinessKey(r)
	}
	if r.is("JOB_BATCH", "ACTIVATED") {
		f.takeBatch(r)
	}
	if r.Key.n <= 0 {
		return
	}
	switch r.ValueType {
	case "PROCESS_INSTANCE":
		if r.is("PROCESS_INSTANCE", "ELEMENT_ACTIVATING", "ELEMENT_ACTIVATED", "ELEMENT_COMPLETED", "ELEMENT_TERMINATED", "ELEMENT_MIGRATED") {
			at(f.elements, of).take(r)
		}
	case "JOB":
		at(f.jobs, of).take(r, number{r.Key.n, true}, r.Value.Retries, r.Value.Deadline.number)
	case "INCIDENT":
		at(f.incidents, of).take(r)
	case "VARIABLE":
		at(f.variables, of).take(r)
	case "USER_TASK":
		at(f.tasks, of).take(r)
	case "TIMER", "PROCESS_MESSAGE_SUBSCRIPTION", "MESSAGE":
		if r.ofStart() {
			of.instance = ""
		}
		at(f.waits, wait{string(r.ValueType), of}).take(r)
	case "SIGNAL", "SIGNAL_SUBSCRIPTION":
		at(f.signals, wait{string(r.ValueType), inInstance{"", of.key}}).take(r)
	case "DECISION_EVALUATION":
		at(f.decisions, of).take(r)
	case "PROCESS":
		if key := r.Value.ProcessDefinitionKey.n; key > 0 {
			of.key = key
		}
		at(f.definitions, of.key).take(r)
	}
}

// aboutInstance reports whether key is an instance's, not a placeholder.
func aboutInstance(key string) bool { return key != "" && key != "-1" && key != "0" }

func (f *aggregates) tables() []*Table {
	elements, active := f.elementTables()
	timers, subscriptions, messages := f.waitTables()
	below, called := f.callTables()
	return []*Table{
		below, called,
		f.instanceTable(), elements, active, f.jobTable(), f.incidentTable(), f.variableTable(), f.taskTable(),
		timers, subscriptions, messages, f.signalTable(), f.decisionTable(), f.definitionTable(),
	}
}

// partition aggregates the records of a partition; 0 has those not identified by position.
type partition struct {
	records           int64
	firstTS, lastTS   number
	newest, positions number // day of ms, and its highest position
}

func (f *aggregates) takePartition(r *record) {
	id := int64(0)
	if r.known == byPosition {
		id = r.PartitionID.n
	}
	p := at(f.partitions, id)
	p.records++
	p.firstTS.setMin(r.at())
	p.lastTS.setMax(r.at())
	if r.known != byPosition {
		return
	}
	const msOfDay = 24 * 60 * 60 * 1000
	day := number{r.ts / msOfDay, true}
	if !p.newest.known || day.n > p.newest.n {
		p.newest, p.positions = day, number{}
	}
	if day == p.newest {
		p.positions.setMax(r.Position)
	}
}

func (f *aggregates) sources() *Table {
	t := newTable("v_sources", 1, "partition_id", "records", "last_position", "first_ts", "last_ts")
	for id, p := range f.partitions {
		t.put(whole(id), whole(p.records), p.positions.cell(), p.firstTS.time(), p.lastTS.time())
	}
	return t
}
