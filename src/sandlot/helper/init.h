/* The resident helper: what its parts know of each other. PROTOCOL.md says what it does. */
#ifndef SANDLOT_INIT_H
#define SANDLOT_INIT_H

#define _GNU_SOURCE
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/types.h>

/* Numbers that older headers lack; they are the same on all machines. */
#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif

/* ------------------------------------------------------------------ protocol */

enum {
	PROTOCOL_VERSION = 1,
	OWNER_FD = 3,
	MAX_FRAME = 16 * 1024 * 1024,
	MAX_WAITING_FDS = 16,
	PAUSE_OUTPUT = 256 * 1024,
	MAX_OUTPUT = 4 * 1024 * 1024,
	MAX_LISTED_ARGV = 4096,
};

enum frame_type {
	START = 0x01,
	SIGNAL,
	KILL,
	SHUTDOWN,
	LIFETIME,
	KEEP,
	LIST,
	WATCH,
	OWN,
	INPUT,
	HELLO = 0x81,
	STARTED,
	FAILED,
	EXITED,
	GONE,
	DONE,
	ERROR,
	LISTING,
	WATCHING,
	OUTPUT,
	ENDING,
};

enum start_flag { START_PTY = 1, START_QUIET = 2 };
enum signal_scope { SCOPE_GROUP = 0, SCOPE_TREE = 1 };
enum stage { STAGE_SETUP = 1, STAGE_CHDIR = 2, STAGE_EXEC = 3 };
enum command_state { STARTING = 0, RUNNING = 1, LEADER_EXITED = 2 };
enum feature { FEATURE_FDS = 1, FEATURE_PTY = 2, FEATURE_NATIVE = 4 };

static inline uint32_t get32(const uint8_t *p)
{
	return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t get64(const uint8_t *p)
{
	return get32(p) | (uint64_t)get32(p + 4) << 32;
}

static inline uint8_t *put32(uint8_t *p, uint32_t value)
{
	for (int i = 0; i < 4; i++)
		*p++ = (uint8_t)(value >> 8 * i);
	return p;
}

static inline uint8_t *put64(uint8_t *p, uint64_t value)
{
	return put32(put32(p, (uint32_t)value), (uint32_t)(value >> 32));
}

/* --------------------------------------------------- connection.c: one client */

struct buffer {
	uint8_t *data;
	size_t start, end, capacity;
};

struct connection {
	struct connection *next;
	int fd;
	bool dead; /* closed at the end of this turn of the loop */
	bool wants_shutdown;
	uint32_t shutdown_id;
	struct buffer in, out;
	int fds[MAX_WAITING_FDS]; /* received, and not taken by a frame yet */
	size_t fd_count;
};

typedef void frame_handler(struct connection *from, uint8_t type, uint32_t id,
			   const uint8_t *body, size_t size);

struct connection *connection_open(int fd);
void connection_close(struct connection *connection);
short connection_interest(const struct connection *connection);
void connection_read(struct connection *connection);
void connection_serve(struct connection *connection, frame_handler *handle);
void connection_flush(struct connection *connection);
bool connection_take_fds(struct connection *connection, int *fds, size_t count);

void send_frame(struct connection *to, enum frame_type type, uint32_t id,
		const void *body, size_t size);
void send_done(struct connection *to, uint32_t id, uint32_t value, const char *text);
void send_error(struct connection *to, uint32_t id, int error, const char *text);

/* ----------------------------------------------------- command.c: the commands */

void command_start(struct connection *from, uint32_t id, const uint8_t *body, size_t size);
void command_signal(struct connection *from, uint32_t id, const uint8_t *body, size_t size);
void command_kill(struct connection *from, uint32_t id, const uint8_t *body, size_t size);
void command_list(struct connection *from, uint32_t id, const uint8_t *body, size_t size);
void command_watch(struct connection *from, uint32_t id, const uint8_t *body, size_t size);

void commands_init(void);
int commands_report_fd(void);
void commands_read_reports(void);
void commands_reap(void);
int commands_prepare_after_ms(void);
void commands_prepare(void);
void commands_forget(const struct connection *connection);
void commands_kill_all(void);
bool commands_sweep(void);
bool commands_all_gone(void);
unsigned commands_survivors(void);

/* -------------------------------------- supervisor.c: one command's own process */

/* What a START asks for. The strings stay where the frame holds them. */
struct order {
	uint64_t serial; /* names the command in reports */
	const uint8_t *body;
	size_t size;
	int fds[3]; /* -1: /dev/null */
};

enum report_kind { REPORT_STARTED, REPORT_FAILED, REPORT_EXITED, REPORT_GONE };

/* Supervisor to helper, through a pipe that all supervisors share. Far below PIPE_BUF, so that
 * each arrives whole. */
struct report {
	uint64_t serial;
	uint32_t kind;
	uint32_t pid;
	uint32_t status; /* the wait status, or the errno */
	uint32_t stage;
	uint32_t last; /* with EXITED: no other descendant is left */
	uint32_t unused;
	uint64_t user_us, system_us, peak_kib;
};

struct supervisor {
	pid_t pid;
	int orders; /* where it waits for orders; -1 if it ends after its only one */
};

bool order_is_well_formed(const uint8_t *body, size_t size);
uint32_t order_flags(const struct order *order);
const char *order_argv(const struct order *order, size_t *size);

void supervisor_init(int report_fd);
bool supervisor_fork(struct supervisor *supervisor, const struct order *order);
bool supervisor_give(const struct supervisor *idle, const struct order *order);

/* ------------------------------------------------- tree.c: processes and their children */

typedef bool pid_predicate(pid_t pid);

/* Sends a signal to all descendants of a process, but not to the process itself, nor to what
 * `skip` (if not NULL) names, nor to that one's descendants. Returns how many there were. */
unsigned tree_signal(pid_t root, int signal, pid_predicate *skip);

/* ------------------------------------------------------------------- remove.c */

/* Removes a file or a whole directory tree, without following links. Returns 0 or an errno. */
int remove_tree(int dir_fd, const char *path);

/* --------------------------------------------------------------------- init.c */

extern bool shutting_down;

/* Returns its argument, unless that is NULL: then the helper ends. */
void *need_memory(void *memory);
void close_fds(unsigned first, unsigned last);
uint64_t now_ms(void);

#endif
