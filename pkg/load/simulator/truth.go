package simulator

// Truth is the true state of an engine, independent of the arrival of its records. Times are epoch milliseconds, 0 if it did not
// happen; missing keys are -1, as in records.
type Truth struct {
	Instances   []*Instance
	Elements    []*Element
	Jobs        []*Job
	Incidents   []*Incident
	Variables   []*Variable
	UserTasks   []*UserTask
	Timers      []*Timer
	Waits       []*MessageWait
	Decisions   []*Decision
	Definitions []*Definition
}

// Process is the definition of an object.
type Process struct {
	BpmnProcessID string
	Version       int64
	DefinitionKey int64
}

type Instance struct {
	Key             int64
	Partition       int64
	Tenant          string
	First           Process // at the start
	Process         Process // current, after migrations
	ParentInstance  int64   // the calling instance
	ParentElement   int64   // the call activity in it
	EnteredAt       int64   // ELEMENT_ACTIVATING of the process
	StartedAt       int64   // ELEMENT_ACTIVATED
	CompletedAt     int64
	TerminatedAt    int64
	FirstSeen       int64 // of events with its key, of the types in seen
	LastSeen        int64
	Incidents       int // created
	OpenIncidents   int // unresolved
	JobFailures     int // JOB FAILED
	MigratedElement int // ELEMENT_MIGRATED, including the process itself
}

// Element is an element instance; the process itself is one, with the key of the process instance.
type Element struct {
	Key          int64
	Instance     *Instance
	Process      Process // current
	FirstID      string  // element id before migrations
	ID           string  // current element id
	Type         string  // bpmnElementType
	FlowScope    int64   // -1 for a process
	EnteredAt    int64   // ELEMENT_ACTIVATING
	ActivatedAt  int64
	CompletedAt  int64
	TerminatedAt int64
	Position     int64      // of its first event
	BodyKey      int64      // of its multi-instance body
	Follows      []*Element // its predecessors; several for a join
}

// Job states, as in the aggregate table jobs.
const (
	JobCreated     = "CREATED"
	JobActivated   = "ACTIVATED"
	JobCompleted   = "COMPLETED"
	JobFailed      = "FAILED"
	JobTimedOut    = "TIMED_OUT"
	JobErrorThrown = "ERROR_THROWN"
	JobCanceled    = "CANCELED"
)

type Job struct {
	Key          int64
	Instance     *Instance
	Element      *Element
	Process      Process // current
	ElementID    string  // current
	Type         string
	State        string // by its last event or activation
	Worker       string // last one
	Retries      int64  // current
	MinRetries   int64  // lowest ever
	Deadline     int64  // of the last activation; -1 without one
	CreatedAt    int64
	ActivatedAt  int64 // last; 0: in no batch
	CompletedAt  int64
	CanceledAt   int64
	EndedAt      int64 // one of these, or when its error was caught
	Failures     int
	TimeOuts     int
	ErrorCode    string // of the last failure or thrown error
	ErrorMessage string
	Activations  int
	LastSeen     int64 // last JOB event or activation
}

type Incident struct {
	Key          int64
	Instance     *Instance
	Element      *Element
	Job          int64 // -1: not of a job
	Process      Process
	ElementID    string // current
	ErrorType    string
	ErrorMessage string
	CreatedAt    int64
	ResolvedAt   int64
}

type Variable struct {
	Key       int64
	Instance  *Instance
	Scope     int64 // element instance
	Process   Process
	Name      string
	First     string // JSON
	Value     string // JSON
	CreatedAt int64
	UpdatedAt int64 // last change, or creation
	Changes   int   // UPDATED
}

// UserTask states, by the last event.
const (
	TaskCreated   = "CREATED"
	TaskCompleted = "COMPLETED"
	TaskCanceled  = "CANCELED"
)

type UserTask struct {
	Key         int64
	Instance    *Instance
	Element     *Element
	Process     Process
	ElementID   string
	State       string
	Assignee    string // current
	Groups      string // candidate groups, JSON
	DueDate     string
	CreatedAt   int64
	AssignedAt  int64 // last assignment
	CompletedAt int64
	CanceledAt  int64
}

type Timer struct {
	Key         int64
	Instance    *Instance
	Element     *Element
	DueAt       int64
	CreatedAt   int64
	TriggeredAt int64
	CanceledAt  int64
}

// MessageWait is the subscription of an element to a message.
type MessageWait struct {
	Key          int64
	Instance     *Instance
	Element      *Element
	Process      Process
	Name         string
	Correlation  string
	CreatedAt    int64 // CREATING
	CorrelatedAt int64
	DeletedAt    int64
}

// Decision is one evaluation of a decision.
type Decision struct {
	Key         int64
	Instance    *Instance
	Element     *Element
	Process     Process // at that time: not changed by migrations
	ElementID   string  // at that time
	ID          string
	Name        string
	Version     int64
	Output      string // JSON; null if it failed
	Failure     string // empty if it succeeded
	FailedID    string // the failed decision among the required ones
	EvaluatedAt int64
}

type Definition struct {
	Process
	Name       string // in its XML
	XML        string
	DeployedAt int64
}
