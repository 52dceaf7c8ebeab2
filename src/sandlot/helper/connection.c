/* One client: frames in and out of a stream socket, and the descriptors that come with them. */
#include "init.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HEADER = 9, CHUNK = 64 * 1024 };

/* -------------------------------------------------------------------- buffers */

static size_t buffer_size(const struct buffer *buffer)
{
	return buffer->end - buffer->start;
}

/* Makes room for `room` more bytes behind the end. */
static void buffer_reserve(struct buffer *buffer, size_t room)
{
	size_t size = buffer_size(buffer);
	if (buffer->capacity - buffer->end >= room)
		return;
	if (buffer->start) {
		memmove(buffer->data, buffer->data + buffer->start, size);
		buffer->start = 0;
		buffer->end = size;
	}
	if (buffer->capacity - size >= room)
		return;
	size_t capacity = buffer->capacity ? buffer->capacity : 4096;
	while (capacity - size < room)
		capacity *= 2;
	buffer->data = need_memory(realloc(buffer->data, capacity));
	buffer->capacity = capacity;
}

static void buffer_consume(struct buffer *buffer, size_t size)
{
	buffer->start += size;
	if (buffer->start < buffer->end)
		return;
	buffer->start = buffer->end = 0;
	if (buffer->capacity > 4 * CHUNK) { /* do not keep what one huge frame needed */
		free(buffer->data);
		*buffer = (struct buffer){0};
	}
}

/* ----------------------------------------------------------------- life cycle */

struct connection *connection_open(int fd)
{
	struct connection *connection = need_memory(calloc(1, sizeof *connection));
	connection->fd = fd;
	return connection;
}

static void drop_waiting_fds(struct connection *connection)
{
	for (size_t i = 0; i < connection->fd_count; i++)
		close(connection->fds[i]);
	connection->fd_count = 0;
}

void connection_close(struct connection *connection)
{
	drop_waiting_fds(connection);
	close(connection->fd);
	free(connection->in.data);
	free(connection->out.data);
	free(connection);
}

/* Which events to poll for: a client that does not read is not read from. */
short connection_interest(const struct connection *connection)
{
	size_t unsent = buffer_size(&connection->out);
	return (unsent ? POLLOUT : 0) | (unsent < PAUSE_OUTPUT ? POLLIN : 0);
}

static void fail(struct connection *connection, int error, const char *text)
{
	send_error(connection, 0, error, text);
	connection_flush(connection);
	connection->dead = true;
}

/* -------------------------------------------------------------------- reading */

/* Moves the descriptors of a message, which Linux puts into one header, to the queue; returns
 * false if there are too many. */
static bool receive_fds(struct connection *connection, struct msghdr *message)
{
	struct cmsghdr *c = CMSG_FIRSTHDR(message);
	size_t count = 0;
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
		count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
	bool fits = !(message->msg_flags & MSG_CTRUNC);
	for (size_t i = 0; i < count; i++) {
		int fd;
		memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
		if (connection->fd_count < MAX_WAITING_FDS) {
			connection->fds[connection->fd_count++] = fd;
		} else {
			close(fd);
			fits = false;
		}
	}
	return fits;
}

/* How much of the frame at the front is still to come, as far as is known. */
static size_t missing(const struct buffer *in)
{
	size_t have = buffer_size(in);
	if (have < 4)
		return 4 - have;
	size_t whole = 4 + (size_t)get32(in->data + in->start);
	return whole > have ? whole - have : 0;
}

static bool length_is_sane(const struct buffer *in)
{
	if (buffer_size(in) < 4)
		return true;
	uint32_t length = get32(in->data + in->start);
	return length >= HEADER - 4 && length <= MAX_FRAME;
}

void connection_read(struct connection *connection)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(MAX_WAITING_FDS * sizeof(int))];
	} control;
	struct buffer *in = &connection->in;
	size_t wanted = missing(in);
	buffer_reserve(in, wanted > CHUNK ? wanted : CHUNK);

	struct iovec space = {in->data + in->end, in->capacity - in->end};
	struct msghdr message = {
		.msg_iov = &space,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof control.bytes,
	};
	ssize_t got = recvmsg(connection->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (got <= 0) {
		connection->dead = true;
		return;
	}
	in->end += (size_t)got;
	if (!receive_fds(connection, &message))
		fail(connection, EMFILE, "too many descriptors that no frame takes");
}

bool connection_take_fds(struct connection *connection, int *fds, size_t count)
{
	if (connection->fd_count < count)
		return false;
	memcpy(fds, connection->fds, count * sizeof *fds);
	connection->fd_count -= count;
	memmove(connection->fds, connection->fds + count, connection->fd_count * sizeof *fds);
	return true;
}

/* -------------------------------------------------------------------- writing */

void connection_flush(struct connection *connection)
{
	struct buffer *out = &connection->out;
	while (buffer_size(out) && !connection->dead) {
		ssize_t sent = send(connection->fd, out->data + out->start, buffer_size(out),
				    MSG_DONTWAIT | MSG_NOSIGNAL);
		if (sent >= 0)
			buffer_consume(out, (size_t)sent);
		else if (errno == EAGAIN)
			return;
		else if (errno != EINTR)
			connection->dead = true;
	}
}

/* Queues a frame; the loop flushes once a turn, so that what belongs together leaves together. */
void send_frame(struct connection *to, enum frame_type type, uint32_t id, const void *body,
		size_t size)
{
	if (to->dead)
		return;
	if (buffer_size(&to->out) + size > MAX_OUTPUT) {
		to->dead = true;
		return;
	}
	buffer_reserve(&to->out, HEADER + size);
	uint8_t *p = put32(to->out.data + to->out.end, (uint32_t)(HEADER - 4 + size));
	*p++ = (uint8_t)type;
	p = put32(p, id);
	if (size)
		memcpy(p, body, size);
	to->out.end += HEADER + size;
}

static void send_number_and_text(struct connection *to, enum frame_type type, uint32_t id,
				 uint32_t number, const char *text)
{
	uint8_t body[1024];
	size_t size = strnlen(text, sizeof body - 4);
	memcpy(put32(body, number), text, size);
	send_frame(to, type, id, body, 4 + size);
}

void send_done(struct connection *to, uint32_t id, uint32_t value, const char *text)
{
	send_number_and_text(to, DONE, id, value, text);
}

void send_error(struct connection *to, uint32_t id, int error, const char *text)
{
	send_number_and_text(to, ERROR, id, (uint32_t)error, text);
}

/* -------------------------------------------------------------------- serving */

static bool may_answer(const struct connection *connection)
{
	return !connection->dead && buffer_size(&connection->out) < PAUSE_OUTPUT;
}

/* Sends what waits, and handles what has arrived as long as the answers are taken: a frame that
 * is left lying here is only come back to when there is something to send. */
void connection_serve(struct connection *connection, frame_handler *handle)
{
	struct buffer *in = &connection->in;
	while (connection_flush(connection), may_answer(connection)) {
		if (!length_is_sane(in))
			fail(connection, EMSGSIZE, "a frame of impossible length");
		if (connection->dead || missing(in))
			break;
		const uint8_t *frame = in->data + in->start;
		size_t size = 4 + (size_t)get32(frame);
		handle(connection, frame[4], get32(frame + 5), frame + HEADER, size - HEADER);
		buffer_consume(in, size);
	}
	if (!buffer_size(in))
		drop_waiting_fds(connection);
}
