"""The verbs of the bilingual world, with their principal parts.

A line reads: level, English (base/past/participle where irregular), the German infinitive, third person present, third person
past, auxiliary and participle, then the classes of its subject and of its object. `auf|machen` is separable: "er macht die Tür
auf", but "weil er die Tür aufmacht". An underscore in the English joins a phrasal verb: "switch_on";
"for" after it lets the clause say for whom.
"""

TRANSITIVE = """
1 eat/ate/eaten = essen isst aß hat gegessen = person = food
1 eat/ate/eaten = fressen frisst fraß hat gefressen = animal = food
1 drink/drank/drunk = trinken trinkt trank hat getrunken = person animal = drink
1 read/read/read = lesen liest las hat gelesen = person = text
1 buy/bought/bought for = kaufen kauft kaufte hat gekauft = person = food drink garment text tool vehicle furniture device
1 see/saw/seen = sehen sieht sah hat gesehen = person animal = person animal building vehicle plant
1 find/found/found = finden findet fand hat gefunden = person animal = food garment tool text container device instrument
1 wear/wore/worn = tragen trägt trug hat getragen = person = garment
1 try_on = an|probieren probiert probierte hat anprobiert = person = garment
1 open for = auf|machen macht machte hat aufgemacht = person = part
1 close for = zu|machen macht machte hat zugemacht = person = part
1 throw_away/threw/thrown = weg|werfen wirft warf hat weggeworfen = person = food garment text furniture container device
1 help = helfen hilft half hat geholfen = person = dative person
1 chase = jagen jagt jagte hat gejagt = animal = animal
2 invite = ein|laden lädt lud hat eingeladen = person = person
2 pick_up = auf|heben hebt hob hat aufgehoben = person = food garment text tool container
2 switch_on = ein|schalten schaltet schaltete hat eingeschaltet = person = device
2 switch_off = aus|schalten schaltet schaltete hat ausgeschaltet = person = device
2 tidy_up = auf|räumen räumt räumte hat aufgeräumt = person = room
2 wash for = waschen wäscht wusch hat gewaschen = person = garment container vehicle
2 repair for = reparieren repariert reparierte hat repariert = person = vehicle device instrument furniture
2 play for = spielen spielt spielte hat gespielt = person = instrument
2 feed/fed/fed = füttern füttert fütterte hat gefüttert = person = animal
2 love = lieben liebt liebte hat geliebt = person = person animal
2 water = gießen gießt goss hat gegossen = person = plant
2 sell/sold/sold = verkaufen verkauft verkaufte hat verkauft = person = food drink garment text tool vehicle furniture instrument
2 look_for = suchen sucht suchte hat gesucht = person animal = person animal food garment tool text
2 follow = folgen folgt folgte ist gefolgt = person animal = dative person animal vehicle
2 visit = besuchen besucht besuchte hat besucht = person = person building
2 steal/stole/stolen = stehlen stiehlt stahl hat gestohlen = person animal = food garment
3 steal/stole/stolen = stehlen stiehlt stahl hat gestohlen = person = text tool device instrument vehicle
3 take_off/took/taken = ab|legen legt legte hat abgelegt = person = garment
3 bring_along/brought/brought = mit|bringen bringt brachte hat mitgebracht = person = food drink text tool instrument
3 phone = an|rufen ruft rief hat angerufen = person = person
3 look_at = an|schauen schaut schaute hat angeschaut = person animal = person animal building vehicle plant
3 paint for = streichen streicht strich hat gestrichen = person = furniture building room
3 draw/drew/drawn for = zeichnen zeichnet zeichnete hat gezeichnet = person = person animal building vehicle plant instrument
3 admire = bewundern bewundert bewunderte hat bewundert = person = person building vehicle garment instrument
3 lose/lost/lost = verlieren verliert verlor hat verloren = person = garment text tool device
3 forget/forgot/forgotten = vergessen vergisst vergaß hat vergessen = person = person garment text
3 hide/hid/hidden = verstecken versteckt versteckte hat versteckt = person = food garment text tool instrument container
3 plant = pflanzen pflanzt pflanzte hat gepflanzt = person = plant
3 thank = danken dankt dankte hat gedankt = person = dative person
3 watch = beobachten beobachtet beobachtete hat beobachtet = person animal = person animal
3 fear = fürchten fürchtet fürchtete hat gefürchtet = person animal = person animal
3 borrow = aus|leihen leiht lieh hat ausgeliehen = person = text tool instrument vehicle
3 clean = putzen putzt putzte hat geputzt = person = room container vehicle instrument
3 build/built/built for = bauen baut baute hat gebaut = person = building furniture instrument
3 translate for = übersetzen übersetzt übersetzte hat übersetzt = person = text
"""

# The second object is the thing given, the first, in the dative, the one who gets it.
GIVING = """
1 give/gave/given = geben gibt gab hat gegeben = person = food drink garment text tool instrument
1 show/showed/shown = zeigen zeigt zeigte hat gezeigt = person = garment text tool building vehicle animal plant device
2 send/sent/sent = schicken schickt schickte hat geschickt = person = food text garment device
2 lend/lent/lent = leihen leiht lieh hat geliehen = person = text tool garment vehicle instrument
3 bring/brought/brought = bringen bringt brachte hat gebracht = person = food drink text tool container
3 offer = an|bieten bietet bot hat angeboten = person = food drink furniture
"""

ALONE = """
1 sleep/slept/slept = schlafen schläft schlief hat geschlafen = person animal
1 fall_asleep/fell/fallen = ein|schlafen schläft schlief ist eingeschlafen = person animal
1 wake_up/woke/woken = auf|wachen wacht wachte ist aufgewacht = person animal
1 sing/sang/sung = singen singt sang hat gesungen = person
1 laugh = lachen lacht lachte hat gelacht = person
2 get_up/got/got = auf|stehen steht stand ist aufgestanden = person
2 arrive = an|kommen kommt kam ist angekommen = person
2 dance = tanzen tanzt tanzte hat getanzt = person
2 work = arbeiten arbeitet arbeitete hat gearbeitet = person
2 come_back/came/come = zurück|kommen kommt kam ist zurückgekommen = person animal
3 cry = weinen weint weinte hat geweint = person
3 snore = schnarchen schnarcht schnarchte hat geschnarcht = person animal
3 give_up/gave/given = auf|geben gibt gab hat aufgegeben = person
3 smile = lächeln lächelt lächelte hat gelächelt = person
"""

# Where? takes the dative: "schläft unter dem Tisch".
RESTING = """
1 sleep/slept/slept = schlafen schläft schlief hat geschlafen = person animal
1 wait = warten wartet wartete hat gewartet = person animal
1 sit/sat/sat = sitzen sitzt saß hat gesessen = person animal
2 stand/stood/stood = stehen steht stand hat gestanden = person animal
2 play = spielen spielt spielte hat gespielt = person animal
3 dance = tanzen tanzt tanzte hat getanzt = person
3 work = arbeiten arbeitet arbeitete hat gearbeitet = person
"""

# Where to? takes the accusative: "läuft unter den Tisch".
MOVING = """
1 run/ran/run = laufen läuft lief ist gelaufen = person animal
1 jump = springen springt sprang ist gesprungen = person animal
2 creep/crept/crept = kriechen kriecht kroch ist gekrochen = person animal
2 go/went/gone = gehen geht ging ist gegangen = person animal
3 sneak = schleichen schleicht schlich ist geschlichen = person animal
"""

SAYING = """
1 know/knew/known = wissen weiß wusste hat gewusst = person
1 say/said/said = sagen sagt sagte hat gesagt = person
2 believe = glauben glaubt glaubte hat geglaubt = person
2 hope = hoffen hofft hoffte hat gehofft = person
3 claim = behaupten behauptet behauptete hat behauptet = person
3 hear/heard/heard = hören hört hörte hat gehört = person
3 dream = träumen träumt träumte hat geträumt = person
"""

# The first clauses of sentences with "it": verbs that say nothing of what the second clause will say. The word after the verb
# tells the place: at rest in both languages (in / im), in motion in both (into / ins), or put (in / ins).
HANDLING = """
1 carry into = tragen trägt trug hat getragen = person animal = food drink garment text tool
1 drag/dragged/dragged into = schleppen schleppt schleppte hat geschleppt = person animal = food garment text tool container
1 find/found/found at = finden findet fand hat gefunden = person animal = food drink garment text tool container device
1 see/saw/seen at = sehen sieht sah hat gesehen = person animal = food drink garment text tool plant animal instrument device
2 hide/hid/hidden at = verstecken versteckt versteckte hat versteckt = person animal = food garment text tool device
2 lay/laid/laid put = legen legt legte hat gelegt = person = garment text tool
2 place put = stellen stellt stellte hat gestellt = person = container device instrument
3 throw/threw/thrown into = werfen wirft warf hat geworfen = person = food garment text tool
3 push into = schieben schiebt schob hat geschoben = person animal = container furniture
3 forget/forgot/forgotten at = vergessen vergisst vergaß hat vergessen = person = garment text tool instrument device
3 discover at = entdecken entdeckt entdeckte hat entdeckt = person animal = food garment text tool container instrument
3 lose/lost/lost at = verlieren verliert verlor hat verloren = person = garment text tool device
"""

# The second clauses: "it" is the subject of the first list and the object of the second. After + stand the classes that the
# verb would fit at a pinch: they are neither antecedents nor rivals.
IT_DOES = """
1 fall_asleep/fell/fallen = ein|schlafen schläft schlief ist eingeschlafen = animal
1 burn_down = ab|brennen brennt brannte ist abgebrannt = building + vehicle furniture plant container
1 depart = ab|fahren fährt fuhr ist abgefahren = vehicle + animal
2 bloom = blühen blüht blühte hat geblüht = plant
2 wither = verwelken verwelkt verwelkte ist verwelkt = plant
2 snore = schnarchen schnarcht schnarchte hat geschnarcht = animal
2 shrink/shrank/shrunk = ein|laufen läuft lief ist eingelaufen = garment + food plant
2 wobble = wackeln wackelt wackelte hat gewackelt = furniture + animal vehicle building device container
3 yawn = gähnen gähnt gähnte hat gegähnt = animal
3 go_bad/went/gone = verderben verdirbt verdarb ist verdorben = food drink + plant
3 bite/bit/bitten = beißen beißt biss hat gebissen = animal
3 brake = bremsen bremst bremste hat gebremst = vehicle
"""

IT_UNDERGOES = """
1 feed/fed/fed = füttern füttert fütterte hat gefüttert = animal + plant device
1 eat/ate/eaten = essen isst aß hat gegessen = food + animal plant drink
1 read/read/read = lesen liest las hat gelesen = text
1 wear/wore/worn = tragen trägt trug hat getragen = garment + tool instrument
1 renovate = renovieren renoviert renovierte hat renoviert = building + room furniture vehicle
1 sharpen = schärfen schärft schärfte hat geschärft = tool
1 drive/drove/driven = fahren fährt fuhr hat gefahren = vehicle + animal
1 upholster = polstern polstert polsterte hat gepolstert = furniture + vehicle instrument
2 stroke = streicheln streichelt streichelte hat gestreichelt = animal + garment
2 water = gießen gießt goss hat gegossen = plant + animal
2 tune = stimmen stimmt stimmte hat gestimmt = instrument + device vehicle
2 play = spielen spielt spielte hat gespielt = instrument + device
2 fill = füllen füllt füllte hat gefüllt = container + food room vehicle
2 switch_on = ein|schalten schaltet schaltete hat eingeschaltet = device + vehicle instrument
2 iron = bügeln bügelt bügelte hat gebügelt = garment
2 translate = übersetzen übersetzt übersetzte hat übersetzt = text
1 drink/drank/drunk = trinken trinkt trank hat getrunken = drink + food container
3 tame = zähmen zähmt zähmte hat gezähmt = animal
3 inhabit = bewohnen bewohnt bewohnte hat bewohnt = building + room vehicle
3 try_on = an|probieren probiert probierte hat anprobiert = garment
3 switch_off = aus|schalten schaltet schaltete hat ausgeschaltet = device + vehicle instrument
3 cook = kochen kocht kochte hat gekocht = food + drink animal plant
3 varnish = lackieren lackiert lackierte hat lackiert = furniture + vehicle instrument tool device
3 copy_out = ab|schreiben schreibt schrieb hat abgeschrieben = text
"""
