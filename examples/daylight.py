"""How long is the day? Reads cities.csv, prints a year for each city, draws daylight.svg.

It needs nothing but Python, knows nothing of sandboxes, and takes its time between lines,
so that one can see the output arrive while it runs.
"""

import colorsys
import csv
import html
import math
import time

BARS = " ▁▂▃▄▅▆▇█"
WEEKS = 52
WIDTH, HEIGHT, LEFT, RIGHT, MARGIN = 900, 460, 50, 110, 40


def day_length(latitude, day):
    """Hours from sunrise to sunset, with the refraction and the sun's size counted in."""
    declination = math.radians(-23.44) * math.cos(2 * math.pi * (day + 10) / 365.25)
    north = math.radians(latitude)
    horizon = math.sin(math.radians(-0.833))
    cosine = (horizon - math.sin(north) * math.sin(declination)) / (
        math.cos(north) * math.cos(declination)
    )
    return 24 / math.pi * math.acos(max(-1.0, min(1.0, cosine)))


def sparkline(hours):
    """One character a week, as tall as the day is long."""
    return "".join(BARS[round(value / 24 * (len(BARS) - 1))] for value in hours)


def shade(place):
    """A colour between blue, for 0, and red, for 1."""
    parts = colorsys.hls_to_rgb(0.6 * (1 - place), 0.42, 0.75)
    return "#" + "".join(f"{round(part * 255):02x}" for part in parts)


def drawing(years):
    """The lines of an SVG file."""

    def x(week):
        return f"{LEFT + week * (WIDTH - LEFT - RIGHT) / (WEEKS - 1):.1f}"

    def y(hours):
        return f"{HEIGHT - MARGIN - hours * (HEIGHT - 2 * MARGIN) / 24:.1f}"

    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
    yield ' font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
    for hours in range(0, 25, 6):
        yield f'<path d="M{x(0)} {y(hours)}H{x(WEEKS - 1)}" stroke="#ddd"/>'
        yield f'<text x="{LEFT - 8}" y="{y(hours)}" text-anchor="end" dy="4">{hours} h</text>'
    for month, name in enumerate("JFMAMJJASOND"):
        yield f'<text x="{x(month * WEEKS / 12 + 2)}" y="{HEIGHT - 12}" fill="#888">{name}</text>'
    for index, (city, year) in enumerate(years):
        colour = shade(index / max(1, len(years) - 1))
        line = " ".join(f"{x(week)},{y(hours)}" for week, hours in enumerate(year))
        yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
        yield f'<text x="{WIDTH - RIGHT + 10}" y="{MARGIN + 4 + index * 28}"'
        yield f' fill="{colour}">{html.escape(city)}</text>'
    yield "</svg>"


def main():
    with open("cities.csv", encoding="utf-8", newline="") as file:
        cities = [(row["city"], float(row["latitude"])) for row in csv.DictReader(file)]
    years = []
    for city, latitude in cities:
        hours = [day_length(latitude, week * 7) for week in range(WEEKS)]
        years.append((city, hours))
        print(
            f"{city:>14}  {sparkline(hours)}  {min(hours):4.1f} to {max(hours):4.1f} h",
            flush=True,
        )
        time.sleep(0.1)
    with open("daylight.svg", "w", encoding="utf-8") as file:
        file.write("\n".join(drawing(years)))
    print(f"{len(cities)} cities drawn to daylight.svg", flush=True)


if __name__ == "__main__":
    main()
