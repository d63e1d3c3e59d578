# Where memory goes, moment by moment: what the ledger holds by tag, and on top of it what the driver sees beyond, so that
# each bar ends at the driver's figure. Rounding and fragmentation (reserved less ledger) lie inside that last part: the
# mark shows how far up they reach. Beside it the lesson's table, whose own counts have no tags.
load 'plots/style.gp'

# One bar per row; a gap where another context or another series begins.
all = ''; places = ''; latest = ''; place = 0.0; highest = 0.0; drivers = 0; contexts = ''
setting(unused) = strcol('context').' '.@row_key
advance(s) = (place = place + (latest eq s || latest eq '' ? 1.0 : 1.5), latest = s, place)
top(unused) = known(num('driver_bytes')) ? num('driver_bytes') : num('reserved_bytes')
stats csv using (all = add_word(all, @row_key), contexts = add_word(contexts, strcol('context')), \
    drivers = drivers + known(num('driver_bytes')), \
    places = places.sprintf('%g ', advance(setting(0))), highest = bigger(highest, top(0)), 0) nooutput
at(row) = real(word(places, int(row) + 1))

# Heights of the parts, each on the ones before it.
scale = highest < 512 * MiB ? MiB : 1024 * MiB
unit = highest < 512 * MiB ? 'MiB' : 'GiB'
weights(unused) = num('weights_bytes') / scale
kv(unused) = weights(0) + num('kv_bytes') / scale
logits(unused) = kv(0) + num('logits_bytes') / scale
ledger(unused) = num('ledger_bytes') / scale

published = lessons.'/anatomy.csv'
held(mib) = mib / 1024.0

# "prefill with all logits" on two short lines
broken(text) = words(text) == 4 ? word(text, 1)."\n".word(text, 3).' '.word(text, 4) : words(text) == 2 ? word(text, 1)."\n".word(text, 2) : text
crowded = rows(csv) > 6
crowded_tick(unused) = strcol('moment').(words(contexts) > 1 ? ', '.commas(int(num('context'))) : '')
tick(unused) = crowded ? crowded_tick(0) : broken(strcol('moment'))
published_tick(unused) = strcol('moment') eq 'initialised' ? 'start' : strcol('moment') eq 'weights loaded' ? "weights\nloaded" \
    : strcol('moment') eq 'after release' ? "after\nrelease" : "forward\npass"
amount(x) = scale > MiB && x < 0.0995 ? sprintf('%.0f MiB', x * 1024) : scale > MiB ? sprintf('%.2f', x) : sprintf('%.1f', x)

do for [format in 'png svg'] {
    eval open_picture(format, 1100, crowded ? 840 : 720)
    set multiplot
    set grid noxtics
    set boxwidth 0.72
    set bmargin at screen (crowded ? 0.34 : 0.24); set tmargin at screen 0.9

    # Measured; the second picture beside it has a scale of its own.
    set lmargin at screen 0.09; set rmargin at screen 0.62
    set title 'Where memory goes: '.heading(all).(words(contexts) == 1 ? ', '.commas(int(word(contexts, 1)[1:*])).' tokens' : '')
    set ylabel unit
    unset xlabel
    set xrange [0.3 : place + 0.7]
    set yrange [0 : highest / scale * 1.12]
    if (crowded) { set xtics rotate by 40 right font font.',9' }
    set key at screen 0.5, screen (crowded ? 0.06 : 0.085) center center vertical maxrows 3 width 1 samplen 2.5 font font.',12'
    plot csv using (at($0)):(given(drivers, top(0) / scale)):xtic(tick(0)) with boxes fs solid 0.25 border lc rgb grey lc rgb grey \
             title drivers ? 'driver, beyond the ledger' : '', \
         csv using (at($0)):(ledger(0)):xtic(tick(0)) with boxes lc rgb green lw 1.5 fs pattern 5 border lc rgb green \
             title 'workspace, other', \
         csv using (at($0)):(logits(0)) with boxes lc rgb orange lw 1.5 fs solid 0 border lc rgb orange notitle, \
         csv using (at($0)):(logits(0)) with boxes lc rgb orange lw 1.5 fs pattern 4 border lc rgb orange title 'logits', \
         csv using (at($0)):(kv(0)) with boxes lc rgb purple lw 1.5 fs solid 1 border lc rgb purple title 'KV cache', \
         csv using (at($0)):(weights(0)) with boxes lc rgb blue lw 1.5 fs solid 0.6 border lc rgb blue title 'weights', \
         csv using (at($0)):(num('reserved_bytes') / scale):(0.36) with xerrorbars lc rgb black lw 2 pt 0 ps 0 \
             title 'reserved', \
         csv using (at($0)):(top(0) / scale):(amount(top(0) / scale)) with labels font font.',11' offset 0, 0.7 notitle, \
         csv using (at($0)):(-1e9) with boxes fs pattern 6 border lc rgb black lc rgb black title 'published, no tags'

    set xtics norotate center font font.',13'
    set lmargin at screen 0.70; set rmargin at screen 0.98
    set title "published: Qwen2.5-1.5B bf16,\nRTX 3060, 4,096 tokens" font font.',12'
    set ylabel 'GiB'
    set xrange [-0.7 : rows(published) - 0.3]
    set yrange [0 : *]
    unset key
    plot published using 0:(held(num('driver_mib'))):xtic(published_tick(0)) with boxes fs solid 0.25 border lc rgb grey lc rgb grey, \
         published using 0:(held(num('allocated_mib'))) with boxes fs solid 0 border lc rgb black lc rgb black, \
         published using 0:(held(num('allocated_mib'))) with boxes fs pattern 6 border lc rgb black lc rgb black, \
         published using 0:(held(num('reserved_mib'))):(0.36) with xerrorbars lc rgb black lw 2 pt 0 ps 0, \
         published using 0:(held(num('driver_mib'))):(sprintf('%.2f', held(num('driver_mib')))) with labels font font.',11' offset 0, 0.7
    unset multiplot
    unset output
}
